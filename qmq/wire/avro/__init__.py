"""Avro: schemas that the mesh defines, and whether the body of a message fits one."""

from .schema import AVRO, AvroSchema, read_schema

__all__ = ["AVRO", "AvroSchema", "read_schema"]
