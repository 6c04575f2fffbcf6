"""A project that encrypts what it gives to Temporal: nothing of it appears anywhere in clear."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec

from redrive.dead_letter_queue import queue_id
from redrive.dead_letters import LetterStatus
from redrive.settings import Settings
from tests.integration.plugin import project
from tests.integration.plugin.conftest import ProjectFactory
from tests.integration.plugin.lab import running

SECRET = "the-orchid-delivery"


class Encryption(PayloadCodec):
    """AES-GCM, as in Temporal's samples."""

    def __init__(self) -> None:
        self._cipher = AESGCM(AESGCM.generate_key(256))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt."""
        return [self._clear(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce = os.urandom(12)
        data = nonce + self._cipher.encrypt(nonce, payload.SerializeToString(), None)
        return Payload(metadata={"encoding": b"binary/encrypted"}, data=data)

    def _clear(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != b"binary/encrypted":
            return payload
        return Payload.FromString(self._cipher.decrypt(payload.data[:12], payload.data[12:], None))


async def test_nothing_encrypted_leaves_in_clear(
    new_project: ProjectFactory, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither histories nor records nor Redrive's logs hold arguments, results or texts of errors."""
    converter = replace(
        DataConverter.default,
        payload_codec=Encryption(),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )
    async with running(await new_project(connect={"data_converter": converter})) as users:
        users.broken("charge")
        users.outside.error = RuntimeError(f"no {SECRET} today")
        order = users.order()
        order.items = [SECRET]
        handle = await users.start(project.OrderWorkflow.run, order)
        [letter] = await users.parked(handle)
        assert "encoded" in letter["payload"]["omitted"]
        assert SECRET not in repr(letter)
        assert letter["config"]["code_line"] is None
        refused = await users.command(letter, "replay", input_patch={"amount": 3})
        assert "a codec that Redrive does not have" in refused.message
        refused = await users.command(letter, "resolve", output={"id": "x", "amount": 3})
        assert "a codec that Redrive does not have" in refused.message
        users.broken()
        assert (await users.command(letter, "replay")).accepted
        assert await handle.result() == "1: shipped o-1 in 3"
        await users.closed(handle, LetterStatus.REPLAYED)
        queue = users.client.get_workflow_handle(queue_id(letter["tenant"], settings.task_queue, users.client.identity))
        for history in (await handle.fetch_history(), await queue.fetch_history()):
            assert SECRET.encode() not in b"".join(event.SerializeToString() for event in history.events)
        told = [record for record in caplog.records if record.name.startswith("redrive")]
        assert not any(SECRET in record.getMessage() for record in told)
