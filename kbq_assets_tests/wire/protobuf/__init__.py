"""Tests of kbq_assets.wire.protobuf."""
