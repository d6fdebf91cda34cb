-- Data that breaks every promise on purpose: beyond bounds, outside lists, without owner, too many rows.
-- What a person can move must stay bounded all the same. Removing any one of these units is a neighbour.

INSERT INTO people VALUES
-- ordinary people, so that others share cells with the strange ones
(1, 'a', 34, 'f', 'CA', 'Paris', 52000, 170.25, 2, 100, 5, true, '2020-02-29', '1986-05-04 12:30:00', 'ok'),
(2, 'b', 51, 'm', 'NY', 'Paris', 0, 181.00, 0, -100, 0, false, '2018-01-01', '1970-01-01 00:00:00', 'of course'),
(3, 'c', 0, 'f', 'TX', 'Rome', 500000, 100.00, 10, 0, 1e6, NULL, '2024-12-31', '2024-12-31 23:59:59.999999', ''),
(4, 'd', 110, 'm', 'CA', 'Rome', 499999.5, 220.00, 1, 1000000, -1, false, '2021-06-15', '1920-01-01 00:00:00', '100%'),
-- everything NULL
(5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
-- below every bound
(6, 'e', -2147483648, '', 'zz', 'nowhere', -1e308, -999.99, -32768, -9223372036854775808, -1e308, true,
 '0001-01-01', '0001-01-01 00:00:00', '_'),
-- above every bound
(7, 'f', 2147483647, 'F', 'ca', 'PARIS', 1e308, 999.99, 32767, 9223372036854775807, 1e308, true,
 '9999-12-31', '9999-12-31 23:59:59.999999', repeat('x', 5000)),
-- not a number; dates beyond what Python can hold
(8, 'g', 40, 'f', 'CA', chr(31), 'nan', 150.00, 3, 5, 'nan', false, '5874897-12-31', '294247-01-10 04:00:54', 'née'),
(9, 'h', 41, 'm', 'NY', 'v', 'inf', 160.00, 4, 6, 'inf', true, 'infinity', 'infinity', e'\n'),
(10, 'i', 42, 'f', 'TX', 'n', '-inf', 170.00, 5, 7, '-inf', NULL, '-infinity', '-infinity', 'NULL'),
-- the smallest numbers there are, and zeros
(11, 'j', 1, 'm', 'CA', '', 5e-324, 0.01, 0, 1, 5e-324, false, '1970-01-01', '1969-12-31 23:59:59.999999', ' '),
(12, 'k', 0, 'f', 'NY', ' Paris', '-0.0', 0.00, 0, 0, '-0.0', true, '2000-02-29', '2000-02-29 00:00:00', 'a'),
-- alone in its city
(13, 'l', 64, 'm', 'TX', 'Atlantis', 75000, 175.50, 2, 42, 0, true, '2019-07-01', '1959-03-03 03:03:03', 'b'),
-- years before the common era
(14, 'm', 33, 'f', 'NY', 'Rome', 33000, 165.00, 1, -42, 0, false, '0044-03-15 (BC)', '0044-03-15 (BC) 12:00:00', 'c');

INSERT INTO visits
-- unit 1 has 40 rows where 6 are declared, over all kinds, 10 clinics and every bound
SELECT i, 1, ['checkup', 'lab', 'surgery', 'none', NULL][1 + i % 5], 'clinic ' || i % 10,
       CASE i % 4 WHEN 0 THEN 1000 WHEN 1 THEN 99999999.99 WHEN 2 THEN -99999999.99 ELSE 10.01 END,
       [10, -10, 1e308, 'nan', 'inf', '-inf', 0.333][1 + i % 7],
       [0, 240, 2147483647, -2147483648, 17][1 + i % 5], i % 3 = 0,
       date '2021-01-01' + CAST(i * 17 AS int), timestamp '2021-01-01' + to_hours(CAST(i * 409 AS int))
FROM range(40) AS r(i);

INSERT INTO visits VALUES
(100, 2, 'lab', 'north', 20.50, 1.5, 30, true, '2021-03-01', '2021-03-01 08:00:00'),
(101, 2, 'lab', 'north', 20.50, 1.5, 30, true, '2021-03-01', '2021-03-01 08:00:00'),
(102, 2, 'checkup', 'south', 1000.00, -9.75, 240, false, '2022-12-31', '2022-12-31 23:59:59'),
(103, 3, 'checkup', 'north', 50.00, 0, 15, false, '2021-03-02', '2021-03-02 09:00:00'),
(104, 4, 'surgery', 'only four', 400.00, 'nan', 200, NULL, '2022-01-01', '2022-01-01 00:00:00'),
(105, 5, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL),
(106, 6, 'SURGERY', '', -99999999.99, -1e308, -2147483648, true, '0001-01-01', '0001-01-01 00:00:00'),
(107, 7, 'lab ', 'NORTH', 99999999.99, 1e308, 2147483647, false, '9999-12-31', '9999-12-31 23:59:59.999999'),
(108, 8, 'lab', 'north', 0.01, 'inf', 1, true, 'infinity', 'infinity'),
(109, 9, 'lab', 'south', 0.00, '-inf', 0, true, '-infinity', '-infinity'),
(110, 10, 'lab', 'south', 12.34, '-0.0', 0, true, '5874897-12-31', '294247-01-10 04:00:54'),
-- nobody in people has this id: still a unit
(111, 77, 'surgery', 'south', 999.99, 9.99, 239, false, '2022-06-30', '2022-06-30 12:00:00'),
(112, -2147483648, 'checkup', 'south', 1, 1, 1, false, '2022-06-30', '2022-06-30 12:00:00'),
-- nobody's rows
(113, NULL, 'checkup', 'north', 50.00, 5, 20, true, '2021-03-02', '2021-03-02 09:00:00'),
(114, NULL, 'lab', 'ghost', 60.00, 6, 25, true, '2021-03-03', '2021-03-03 09:00:00'),
(115, NULL, NULL, NULL, NULL, NULL, 7, NULL, NULL, NULL);

-- unit 78 has as many rows as count, each at the upper bounds, in each of as many clinics as count: who may have several
-- unknown keys must be bounded over all of them together
INSERT INTO visits
SELECT 200 + i, 78, 'lab', 'ward ' || i % 6, 1000, 10, 240, true, '2021-03-01', '2021-03-01 08:00:00'
FROM range(36) AS r(i);

INSERT INTO surveys VALUES
-- three rows where one is declared
(1, 1, 3.5, 'yes'), (1, 5, 24, 'no'), (1, 3, -1, 'maybe'),
(2, 2, 8.25, 'yes'), (2, 2, 8.25, 'yes'),
(3, 99, 1e300, 'no'), (4, -2147483648, 'nan', ''), (5, NULL, NULL, NULL), (6, 4, 'inf', 'yes'), (7, 5, '-inf', 'YES'),
(NULL, 1, 7, 'yes'), (NULL, NULL, NULL, NULL), (88, 3, 12, 'only one');

INSERT INTO "Gifts"
SELECT 1, i * 100000000, ['book', 'toy', 'none', NULL][1 + i % 4], 'shop ' || i % 8 FROM range(20) AS r(i);
INSERT INTO "Gifts" SELECT 78, 500, 'toy', 'shop ' || i % 2 FROM range(16) AS r(i);
INSERT INTO "Gifts" VALUES
(2, 500, 'book', 'shop 1'), (2, 1, 'toy', 'shop 2'), (2, 2, 'toy', 'shop 3'), (3, -5, 'book', 'shop 1'),
(4, 20, NULL, NULL), (5, NULL, 'toy', ''), (NULL, 100, 'book', 'shop 1'), (NULL, NULL, NULL, NULL);

-- of the visits of everybody above, also of those that belong to nobody, and of a visit that does not exist
INSERT INTO items
SELECT v, l, ['pill', 'plaster', 'bone', NULL][1 + (v + l) % 4], [0.01, 100, 999999.99, -999999.99][1 + v % 4],
       [1, 10, 2147483647, -2147483648, NULL][1 + (v * l) % 5], [0.25, 5, 1e308, 'nan', '-inf'][1 + (v + 2 * l) % 5]
FROM range(116) AS r(v), range(1, 4) AS q(l) WHERE v % 3 <> 1;
INSERT INTO items VALUES (9999, 1, 'pill', 50, 5, 1), (-1, 1, 'plaster', 50, 5, 1);
INSERT INTO remarks SELECT visit_id, line, ['good', 'bad', NULL][1 + line % 3], [0, 100, 2147483647][1 + visit_id % 3]
FROM items, range(2);
INSERT INTO remarks VALUES (NULL, 1, 'good', 1), (100, NULL, 'good', 2), (NULL, NULL, NULL, NULL), (100, 99, 'bad', 3);

INSERT INTO secrets VALUES (1, 1);
