"""Record 89 in PyTorch: reference89.py is its command line, README.md of the folder above states the conventions."""
