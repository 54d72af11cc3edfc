"""The HTTP service: predictions, plans, decisions, stored measurements and registered models, with web pages."""
