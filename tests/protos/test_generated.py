"""The generated code works with the protobuf and grpcio at hand, and pyproject.toml declares the versions it needs."""

from __future__ import annotations

import importlib
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "protos" / "orca_protos"
MESSAGES = sorted(path.stem for path in FOLDER.glob("*_pb2.py"))
SERVICES = sorted(path.stem for path in FOLDER.glob("*_pb2_grpc.py"))


def filled(descriptor: Descriptor) -> Message:
    """Return a message in which every scalar field of the first level is set."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None or field.containing_oneof is not None:
            continue
        value: object = 1
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            value = b"1" if field.type == FieldDescriptor.TYPE_BYTES else "1"
        if field.is_repeated:
            getattr(message, field.name).append(value)
        elif field.enum_type is not None:
            setattr(message, field.name, field.enum_type.values[-1].number)
        else:
            setattr(message, field.name, value)
    return message


@pytest.mark.parametrize("module", MESSAGES)
def test_every_message_survives_its_encoding(module):
    descriptors = importlib.import_module(f"orca_protos.{module}").DESCRIPTOR.message_types_by_name
    assert descriptors
    for descriptor in descriptors.values():
        message = filled(descriptor)
        assert type(message).FromString(message.SerializeToString()) == message


@pytest.mark.parametrize("module", SERVICES)
def test_every_service_takes_calls(module):
    """The generated servicer answers each call with UNIMPLEMENTED; without a servicer the words would be others."""
    generated = importlib.import_module(f"orca_protos.{module}")
    services = importlib.import_module(f"orca_protos.{module.removesuffix('_grpc')}").DESCRIPTOR.services_by_name
    for name, service in services.items():
        server = grpc.server(ThreadPoolExecutor(2))
        getattr(generated, f"add_{name}Servicer_to_server")(getattr(generated, f"{name}Servicer")(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = getattr(generated, f"{name}Stub")(channel)
                unary = [method for method in service.methods if not method.client_streaming]
                assert unary
                for method in unary:
                    request = GetMessageClass(method.input_type)()
                    with pytest.raises(grpc.RpcError) as error:  # noqa: PT012 - a stream raises when it is read
                        reply = getattr(stub, method.name)(request, timeout=60, wait_for_ready=True)
                        list(reply)
                    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
                    assert error.value.details() == "Method not implemented!"
        finally:
            server.stop(None)


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_the_lower_bounds_are_what_the_generated_code_needs():
    declared = dict(
        re.findall(
            r"(\w+)>=([\d.]+)",
            " ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]),
        )
    )
    for module in MESSAGES:
        needed = re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+),", (FOLDER / f"{module}.py").read_text())
        assert needed, module
        assert version(declared["protobuf"]) >= tuple(map(int, needed.groups()))
    for module in SERVICES:
        needed = re.search(r"^GRPC_GENERATED_VERSION = '([\d.]+)'", (FOLDER / f"{module}.py").read_text(), re.MULTILINE)
        assert needed, module
        assert version(declared["grpcio"]) >= version(needed[1])
