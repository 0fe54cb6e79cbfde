"""Views: events, plans, findings and results as lines for people or data for programs.

The only room that writes to the terminal. A view decides nothing: it renders what it is given.
"""
