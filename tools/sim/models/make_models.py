#!/usr/bin/env python3
"""Writes the tensor tables of the models that canary-sim knows, from the definitions of their architectures.

  make_models.py           writes NAME.inc beside this script
  make_models.py --check   compares them with what it would write; exit status 1 if they differ
  make_models.py --list    prints tensors, parameters and multiply-accumulates of each

Each row of a table is a tensor in forward order: its name, its number of fp32 elements, and the multiply-accumulates
(MACs) of one image's forward pass that its layer does. All MACs of a layer stand at its weight; biases and batch
normalisation count as free. An input image has 224 x 224 pixels.
"""
import os
import sys


class Table:
    """The rows of a model. The layers below return the shape (channels, height, width) of what they give."""

    def __init__(self):
        self.rows = []

    def conv(self, name, shape, out, kernel, stride=1, pad="same", norm=True):
        """A convolution without a bias; with `norm` a batch normalisation follows. kernel: one number or (height,
        width). pad "same" keeps ceil(size / stride), "valid" pads nothing."""
        channels, height, width = shape
        kernel_height, kernel_width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        if pad == "same":
            height, width = -(-height // stride), -(-width // stride)
        else:
            height, width = (height - kernel_height) // stride + 1, (width - kernel_width) // stride + 1
        elements = channels * kernel_height * kernel_width * out
        self.rows.append((name + ".weight", elements, elements * height * width))
        shape = (out, height, width)
        return self.norm(name + "_norm", shape) if norm else shape

    def norm(self, name, shape):
        self.rows.append((name + ".weight", shape[0], 0))
        self.rows.append((name + ".bias", shape[0], 0))
        return shape

    def linear(self, name, inputs, outputs):
        self.rows.append((name + ".weight", inputs * outputs, inputs * outputs))
        self.rows.append((name + ".bias", outputs, 0))


def pooled(shape, stride=2, kernel=3, pad="same"):
    channels, height, width = shape
    if pad == "same":
        return channels, -(-height // stride), -(-width // stride)
    return channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1


def joined(*shapes):
    """What branches give together: their channels behind one another."""
    assert len({shape[1:] for shape in shapes}) == 1, shapes
    return (sum(shape[0] for shape in shapes),) + shapes[0][1:]


IMAGE = (3, 224, 224)


def googlenet():
    """Szegedy et al., Going deeper with convolutions (2015), table 1: without batch normalisation, without the two
    auxiliary classifiers, without biases but the last."""
    t = Table()
    x = pooled(t.conv("conv1", IMAGE, 64, 7, stride=2, norm=False))
    x = t.conv("conv2_reduce", x, 64, 1, norm=False)
    x = pooled(t.conv("conv2", x, 192, 3, norm=False))
    # name: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, projection after pooling
    blocks = (("3a", 64, 96, 128, 16, 32, 32), ("3b", 128, 128, 192, 32, 96, 64),
              ("4a", 192, 96, 208, 16, 48, 64), ("4b", 160, 112, 224, 24, 64, 64), ("4c", 128, 128, 256, 24, 64, 64),
              ("4d", 112, 144, 288, 32, 64, 64), ("4e", 256, 160, 320, 32, 128, 128),
              ("5a", 256, 160, 320, 32, 128, 128), ("5b", 384, 192, 384, 48, 128, 128))
    for name, one, reduce3, three, reduce5, five, projection in blocks:
        if name in ("4a", "5a"):
            x = pooled(x)
        block = "inception" + name
        x = joined(t.conv(block + ".1x1", x, one, 1, norm=False),
                   t.conv(block + ".3x3", t.conv(block + ".3x3_reduce", x, reduce3, 1, norm=False), three, 3,
                          norm=False),
                   t.conv(block + ".5x5", t.conv(block + ".5x5_reduce", x, reduce5, 1, norm=False), five, 5,
                          norm=False),
                   t.conv(block + ".projection", x, projection, 1, norm=False))
    t.linear("classifier", x[0], 1000)
    return t.rows


def resnet(blocks):
    """He et al., Deep residual learning (2016), table 1: bottleneck blocks whose first convolution strides."""
    t = Table()
    x = pooled(t.conv("conv1", IMAGE, 64, 7, stride=2))
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name = "conv%d_%d" % (stage + 2, block + 1)
            stride = 2 if stage > 0 and block == 0 else 1
            y = t.conv(name + ".1", x, width, 1, stride=stride)
            y = t.conv(name + ".2", y, width, 3)
            y = t.conv(name + ".3", y, 4 * width, 1)
            if block == 0:
                t.conv(name + ".shortcut", x, 4 * width, 1, stride=stride)
            x = y
    t.linear("classifier", x[0], 1000)
    return t.rows


def densenet(blocks, growth, first):
    """Huang et al., Densely connected convolutional networks (2017), table 1, with bottlenecks and compression 0.5."""
    t = Table()
    x = pooled(t.conv("conv0", IMAGE, first, 7, stride=2))
    for block, count in enumerate(blocks):
        for layer in range(count):
            name = "block%d_%d" % (block + 1, layer + 1)
            t.norm(name + ".norm1", x)
            y = t.conv(name + ".1", x, 4 * growth, 1)  # its normalisation is the one in front of the second
            x = joined(x, t.conv(name + ".2", y, growth, 3, norm=False))
        if block + 1 < len(blocks):
            name = "transition%d" % (block + 1)
            t.norm(name + ".norm", x)
            x = pooled(t.conv(name, x, x[0] // 2, 1, norm=False))
    t.norm("norm_last", x)
    t.linear("classifier", x[0], 1000)
    return t.rows


def inceptionv4():
    """Szegedy et al., Inception-v4, Inception-ResNet and the impact of residual connections (2017), figures 3 to 9."""
    t = Table()

    def chain(name, x, *layers):
        """Convolutions one after the other: (out, kernel[, stride, pad])."""
        for number, layer in enumerate(layers):
            x = t.conv("%s_%d" % (name, number + 1) if len(layers) > 1 else name, x, *layer)
        return x

    x = chain("stem", IMAGE, (32, 3, 2, "valid"), (32, 3, 1, "valid"), (64, 3))
    x = joined(pooled(x, pad="valid"), t.conv("stem_3a", x, 96, 3, 2, "valid"))
    x = joined(chain("stem_4a.a", x, (64, 1), (96, 3, 1, "valid")),
               chain("stem_4a.b", x, (64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3, 1, "valid")))
    x = joined(t.conv("stem_5a", x, 192, 3, 2, "valid"), pooled(x, pad="valid"))
    for block in range(4):
        name = "inception_a%d" % (block + 1)
        x = joined(chain(name + ".a", x, (96, 1)), chain(name + ".b", x, (64, 1), (96, 3)),
                   chain(name + ".c", x, (64, 1), (96, 3), (96, 3)), chain(name + ".pool", x, (96, 1)))
    x = joined(t.conv("reduction_a.a", x, 384, 3, 2, "valid"),
               chain("reduction_a.b", x, (192, 1), (224, 3), (256, 3, 2, "valid")), pooled(x, pad="valid"))
    for block in range(7):
        name = "inception_b%d" % (block + 1)
        x = joined(chain(name + ".a", x, (384, 1)), chain(name + ".b", x, (192, 1), (224, (1, 7)), (256, (7, 1))),
                   chain(name + ".c", x, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
                   chain(name + ".pool", x, (128, 1)))
    x = joined(chain("reduction_b.a", x, (192, 1), (192, 3, 2, "valid")),
               chain("reduction_b.b", x, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2, "valid")),
               pooled(x, pad="valid"))
    for block in range(3):
        name = "inception_c%d" % (block + 1)
        one = chain(name + ".a", x, (256, 1))
        y = chain(name + ".b", x, (384, 1))
        two = joined(t.conv(name + ".b_left", y, 256, (1, 3)), t.conv(name + ".b_right", y, 256, (3, 1)))
        y = chain(name + ".c", x, (384, 1), (448, (3, 1)), (512, (1, 3)))
        three = joined(t.conv(name + ".c_left", y, 256, (1, 3)), t.conv(name + ".c_right", y, 256, (3, 1)))
        x = joined(one, two, three, chain(name + ".pool", x, (256, 1)))
    t.linear("classifier", x[0], 1000)
    return t.rows


MODELS = {
    "googlenet": googlenet(),
    "resnet50": resnet((3, 4, 6, 3)),
    "resnet152": resnet((3, 8, 36, 3)),
    "densenet161": densenet((6, 12, 36, 24), growth=48, first=96),
    "densenet201": densenet((6, 12, 48, 32), growth=32, first=64),
    "inceptionv4": inceptionv4(),
}


def text_of(rows):
    head = "// Written by make_models.py: name, elements, multiply-accumulates of one image forward.\n"
    return head + "".join('{"%s", %d, %d},\n' % row for row in rows)


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    differ = 0
    for name, rows in MODELS.items():
        path = os.path.join(folder, name + ".inc")
        if "--list" in sys.argv[1:]:
            print("%-12s %4d tensors %9.3f M parameters %7.3f GMACs" % (
                name, len(rows), sum(row[1] for row in rows) / 1e6, sum(row[2] for row in rows) / 1e9))
        elif "--check" in sys.argv[1:]:
            with open(path) as file:
                if file.read() != text_of(rows):
                    print("%s is not what make_models.py writes" % path)
                    differ = 1
        else:
            with open(path, "w") as file:
                file.write(text_of(rows))
    return differ


if __name__ == "__main__":
    sys.exit(main())
