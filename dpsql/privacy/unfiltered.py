"""The rows a query reads, before its conditions choose among them: on these a clip is searched for, once for all."""

from __future__ import annotations

from dataclasses import replace

from dpsql.plan.nodes import Filter, Join, Plan, SemiJoin, SetOperation, inputs


def unfiltered(plan: Plan) -> Plan:
    """The same relation without WHERE, and without IN and EXISTS on the unit; joins keep their conditions."""
    match plan:
        case Filter(child=child) | SemiJoin(child=child):
            return unfiltered(child)
        case Join() | SetOperation():
            return replace(plan, left=unfiltered(plan.left), right=unfiltered(plan.right))
        case _ if inputs(plan):
            return replace(plan, child=unfiltered(plan.child))  # type: ignore[union-attr,arg-type]
        case _:
            return plan
