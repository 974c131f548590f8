"""Configuration: what can be set (`schema`), how it is read (`load`), how it is printed (`show`)."""
