"""resnet18: a convolutional network, for measurements: a batch reads its 47 MB of weights once."""
