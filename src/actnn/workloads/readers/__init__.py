"""Data in open formats: masks beside images, boxes of VOC and COCO, plain texts, and tables."""
