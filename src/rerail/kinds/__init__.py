"""Kinds: each turns an action into work; an executor runs it."""
