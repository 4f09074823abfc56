"""digits: a small convolutional network that reads handwritten digits."""
