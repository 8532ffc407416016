"""Attentions of joint graphs, with their backwards: found, decided on as one, replaced."""
