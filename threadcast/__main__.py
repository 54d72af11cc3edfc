"""`python -m threadcast` is the command `threadcast`."""

from threadcast.cli.main import main

if __name__ == "__main__":
    main()
