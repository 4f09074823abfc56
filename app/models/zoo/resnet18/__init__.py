"""resnet18: a convolutional network, for measurements in which batches gain nothing on a CPU."""
