"""Plans and traces as timelines and images, and the HTML pages that show them without a server."""
