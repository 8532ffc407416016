"""Tools for people: command line, checks of rules, profiles, explanations, coverage."""
