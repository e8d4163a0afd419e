"""Attacks: everything that can be killed, stopped, filled or shared is, and the promises are judged from outside."""
