"""A small model of the scripts and of those who call them, in which every state is visited.

What is modelled, and what is not, is said for readers in docs/explanation/model.md.
"""
