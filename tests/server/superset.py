"""Superset, pointed at `dpsql demo --serve`: a database, a dataset and a chart, made through Superset's own REST API.

Too heavy for every run of the tests; to be run by hand, in an environment of Superset's own:

    python -m venv superset && superset/bin/pip install apache-superset 'flask-caching<2.4' cachetools psycopg2-binary
    dpsql demo --serve
    superset/bin/python tests/server/superset.py postgresql://analyst:demo@127.0.0.1:5437/dpsql

Prints what Superset got. Everything it keeps is in a temporary folder.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

USER = "owner"


def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "superset_config.py"
        settings.write_text(
            f"SECRET_KEY = {secrets.token_urlsafe(42)!r}\n"
            f"SQLALCHEMY_DATABASE_URI = 'sqlite:///{folder}/superset.db'\n"
            "WTF_CSRF_ENABLED = False\nTALISMAN_ENABLED = False\n"
        )
        os.environ |= {"SUPERSET_CONFIG_PATH": str(settings), "SUPERSET_HOME": folder}
        sys.path.pop(0)  # this file has Superset's own name
        from superset.app import create_app

        app = create_app()
        with app.app_context():
            password = _prepare()
        _try(app.test_client(), password, url)  # outside: each request has a context, and a user, of its own


def _prepare() -> str:
    """Superset's own tables, and somebody who may do everything."""
    import superset
    from flask_migrate import upgrade
    from superset.extensions import appbuilder

    upgrade(directory=str(Path(superset.__file__).parent / "migrations"))
    appbuilder.add_permissions(update_perms=True)
    security = appbuilder.sm
    security.sync_role_definitions()
    password = secrets.token_urlsafe(12)
    security.add_user(USER, "An", "Owner", "owner@example.org", security.find_role("Admin"), password=password)
    return password


def _try(client: Any, password: str, url: str) -> None:
    def call(method: str, path: str, **body: object) -> Any:
        answer = getattr(client, method)(f"/api/v1/{path}", json=body or None, headers=headers)
        shown = json.dumps({key: value for key, value in answer.json.items() if not key.endswith("_token")})
        print(f"{method.upper()} {path}: {answer.status_code} {shown[:300]}{'…' if len(shown) > 300 else ''}\n")
        assert answer.status_code < 300, path
        return answer.json

    headers: dict[str, str] = {}
    token = call("post", "security/login", username=USER, password=password, provider="db")["access_token"]
    headers["Authorization"] = f"Bearer {token}"

    connection = {"database_name": "dpsql", "sqlalchemy_uri": url}
    call("post", "database/test_connection/", **connection)
    database = call("post", "database/", expose_in_sqllab=True, **connection)["id"]
    call("get", f"database/{database}/schemas/")
    tables = "(force:!f,schema_name:public)"
    call("get", f"database/{database}/tables/?q={tables}")
    call("get", f"database/{database}/table_metadata/?name=patients&schema=public")

    dataset = call("post", "dataset/", database=database, schema="public", table_name="patients")["id"]
    columns = call("get", f"dataset/{dataset}")["result"]["columns"]
    print("columns:", {column["column_name"]: column["type"] for column in columns}, "\n")

    count = {"expressionType": "SQL", "sqlExpression": "COUNT(*)", "label": "patients"}
    mean = {
        "expressionType": "SIMPLE",
        "column": {"column_name": "income"},
        "aggregate": "AVG",
        "label": "income",
    }
    filters = [{"col": "age", "op": ">=", "val": 18}]
    by_region = {"columns": ["region"], "metrics": [count, mean], "filters": filters, "row_limit": 100}
    by_year = {
        "columns": [{"columnType": "BASE_AXIS", "sqlExpression": "joined", "label": "joined", "timeGrain": "P1Y",
                     "expressionType": "SQL"}],
        "metrics": [count],
        "granularity": "joined",
        "extras": {"time_grain_sqla": "P1Y"},
        "row_limit": 100,
    }  # fmt: skip
    for query in (by_region, by_year):
        chart = {
            "datasource": {"id": dataset, "type": "table"},
            "queries": [query],
            "result_type": "full",
            "result_format": "json",
        }
        for result in call("post", "chart/data", **chart)["result"]:
            print(result["query"])
            for row in result["data"]:
                print(row)
            print()
    call("post", "sqllab/execute/", database_id=database, sql="SELECT sex, COUNT(*) FROM patients GROUP BY sex")


if __name__ == "__main__":
    main(sys.argv[1])
