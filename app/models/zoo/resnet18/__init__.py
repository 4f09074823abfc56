"""resnet18: a convolutional network, for measurements: its 47 MB of weights make a row cheaper in company."""
