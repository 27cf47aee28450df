"""Configuration: the models, the layers that fill them, the files they name, and changes while the gateway serves."""
