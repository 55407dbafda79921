"""Queue pairs: RC, UD, UC and RD over one context."""
