"""What an attempt does. A kind turns an action into work; an executor runs it."""
