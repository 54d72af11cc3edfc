"""GET /v1/machines: the machines that requests may name."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from threadcast.core.machine_names import names_of
from threadcast.service.answer_formats import Machines
from threadcast.service.answers import answer
from threadcast.service.context import context, reply
from threadcast.service.documents import local_machine

blueprint = APIBlueprint("machines", __name__, url_prefix="/v1")


@blueprint.get("/machines")
@blueprint.doc(extensions=answer(Machines, "Every known machine, that of the service first."))
def machines() -> Response:
    """List the machines that requests may name

    By any of `names`: the fingerprint, the name where it means nothing else, and "local" for that of the service.
    """
    here, stored = local_machine(), context().stored.machines()
    known = {here.fingerprint: here, **stored}
    return reply({
        "machines": [
            {
                "fingerprint": fingerprint, "name": machine.name, "cores": len(machine), "local": machine == here,
                "names": names_of(machine, known, local=local_machine),
                "known_from": ["this machine"] * (machine == here) + ["measurements"] * (fingerprint in stored),
            }
            for fingerprint, machine in known.items()
        ]
    })  # fmt: skip
