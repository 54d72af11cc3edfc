"""Runs graphs by plans on real cores, and finds in the caller's own calls what runs them fastest.

Two doors (`doors`) share everything behind them: kinds of calls (`calls`), what chooses (`tuner`), candidates (`plans`,
`backends`), the proof that numbers are PyTorch's (`check`), and what runs a plan (`engine`, `operators`).
"""
