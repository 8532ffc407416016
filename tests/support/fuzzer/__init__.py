"""Whole Python programs at random, held against eager.

grammar   a seed -> the source of a program that eager runs (of `spellings`, `statements`, `fragments`)
program   a source as a module: its function or model, its inputs, how it is to be called
runner    eager and compiled side by side, call by call
compare   what differs, beyond what rounding explains
shrink    a failing source -> a smaller one that fails alike
service   many seeds over several processes, resumable
"""
