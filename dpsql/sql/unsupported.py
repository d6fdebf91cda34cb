"""Functions that dpsql does not support: what to write instead, and whether PostgreSQL has them."""

from __future__ import annotations

_ROWS = "It would return values of single rows; put the rows of an answer together after they have come."
_PATTERNS = "There are no regular expressions: use LIKE, ILIKE, SPLIT_PART, REPLACE, POSITION or LEFT."

_OF_ARRAYS = (
    "unnest array_length array_upper array_lower array_ndims array_dims cardinality array_to_string array_position "
    "array_append array_prepend array_cat array_remove to_json to_jsonb"
)

_HINTS = {
    name: hint
    for names, hint in {
        _OF_ARRAYS: "A subscript takes one value of an array: (…)[2].",
        "string_agg array_agg json_agg jsonb_agg json_object_agg group_concat listagg any_value": _ROWS,
        "regexp_replace regexp_match regexp_matches regexp_like regexp_substr regexp_extract regexp_count": _PATTERNS,
        "year month day hour minute quarter week dayofweek weekday": "Write EXTRACT(YEAR FROM x), and so on.",
        "dateadd date_add date_sub timestampadd": "Write x + INTERVAL '1 day'.",
        "datediff date_diff timestampdiff": "Subtract: dates give days, EXTRACT(EPOCH FROM a - b) gives seconds.",
        "getdate sysdate today curdate clock_timestamp statement_timestamp": "Write CURRENT_DATE or now().",
        "date_format strftime format_date datename": "Write TO_CHAR(x, 'YYYY-MM').",
        "if iif decode": "Write CASE WHEN … THEN … ELSE … END.",
        "ifnull nvl isnull zeroifnull": "Write COALESCE(x, 0).",
        "countif count_if sumif": "Write COUNT(*) FILTER (WHERE …).",
        "safe_divide": "Write x / NULLIF(y, 0).",
        "len": "Write LENGTH(x).",
        "charindex instr locate": "Write STRPOS(x, 'text').",
        "lpad rpad repeat": "TO_CHAR(x, 'YYYY-MM') writes dates with their zeros; pad other texts in the answer.",
        "initcap": "Use LOWER or UPPER.",
        "random rand": "A sample is not needed: noise and price are the same for all rows.",
        "format json_build_object": "Texts and numbers are put together with || and CONCAT.",
        "version current_user session_user current_database current_schema current_setting pg_typeof": (
            "Ask for it in a statement of its own, without declared tables."
        ),
    }.items()
    for name in names.split()
}

_IN_THE_CLIENT = "Aggregate here, and apply it to the answer in your client."

# Functions of PostgreSQL by the beginning of their names, and those that share none.
_FAMILIES = tuple(
    "acos array_ asin atan bit_ cos cot current_ date_ get_ has_ inet_ int4 int8 json lo_ make_ pg_ quote_ range_ "
    "regexp_ set_ sha sin string_ tan to_ trim_ ts_ txid_ unicode_ uuid xml".split()
)
_NAMES = frozenset(
    "any_value ascii cardinality casefold chr clock_timestamp convert convert_from convert_to "
    "crc32 currval decode encode factorial format gamma gcd gen_random_uuid generate_subscripts host "
    "initcap is_normalized isfinite justify_days justify_hours justify_interval lastval lcm lpad lower_inc "
    "masklen md5 min_scale netmask network nextval normalize num_nonnulls num_nulls octet_length overlay "
    "parse_ident random random_normal repeat reverse row_to_json rpad scale session_user setseed setval "
    "statement_timestamp timeofday transaction_timestamp translate unistr unnest version xpath".split()
)


def is_in_postgres(name: str) -> bool:
    """Whether PostgreSQL has a function of that name, as far as one can tell from the name."""
    return name in _NAMES or name.startswith(_FAMILIES)


def hint_for(name: str) -> str | None:
    return _HINTS.get(name, _IN_THE_CLIENT if is_in_postgres(name) else None)
