import java.io.StringReader;
import java.io.StringWriter;
import java.sql.*;
import java.util.*;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

/** One step after the other, each a line of output: its name and what it saw. Arguments: URL, user, password. */
public class Jdbc {
    static final String COUNT = "SELECT count(*) AS n FROM people";
    static final String STATES = "SELECT state, count(*) AS n FROM people WHERE age > 40 GROUP BY state ORDER BY state";
    static final String OLDER = "SELECT count(*) AS n FROM people WHERE age > ?";

    interface Step {
        Object run(Connection connection) throws Exception;
    }

    static String url, user, password;

    public static void main(String[] arguments) {
        url = arguments[0];
        user = arguments[1];
        password = arguments[2];
        step("count", connection -> all(connection.createStatement().executeQuery(COUNT)));
        step("states", connection -> all(connection.createStatement().executeQuery(STATES)));
        step("parameter", connection -> older(connection, 65));
        step("many uses", Jdbc::manyUses);
        step("fetch size", Jdbc::fetchSize);
        step("transaction", Jdbc::transaction);
        step("error", Jdbc::error);
        step("several results", Jdbc::severalResults);
        step("simple mode", connection -> all(simple().createStatement().executeQuery(STATES)));
        step("tables", Jdbc::tables);
        step("columns", Jdbc::columns);
        step("other metadata", Jdbc::otherMetadata);
        step("statement metadata", Jdbc::statementMetadata);
        step("batch", Jdbc::batch);
        step("copy", Jdbc::copy);
        step("query timeout", Jdbc::queryTimeout);
        step("cancel", Jdbc::cancel);
        step("instants", Jdbc::instants);
        step("refusal", Jdbc::refusal);
    }

    static void step(String name, Step step) {
        try (Connection connection = DriverManager.getConnection(url, user, password)) {
            System.out.println(name + ": " + step.run(connection));
        } catch (Exception error) {
            System.out.println(name + ": failed with " + error);
        }
    }

    static Connection simple() throws SQLException {
        String mark = url.contains("?") ? "&" : "?";
        return DriverManager.getConnection(url + mark + "preferQueryMode=simple", user, password);
    }

    static String all(ResultSet rows) throws SQLException {
        List<String> found = new ArrayList<>();
        int width = rows.getMetaData().getColumnCount();
        while (rows.next()) {
            List<String> row = new ArrayList<>();
            for (int i = 1; i <= width; i++) row.add(rows.getString(i));
            found.add(String.join("|", row));
        }
        return String.join(" ", found);
    }

    /** The driver sets TimeZone to the machine's zone when it connects. A value is an instant on both ways. */
    static Object instants(Connection connection) throws SQLException {
        String months = "SELECT date_trunc('month', seen::timestamptz) AS month, count(*) AS n FROM visits"
            + " WHERE seen::timestamptz >= ? AND seen::timestamptz < ? GROUP BY 1 HAVING count(*) > 0 ORDER BY 1";
        List<String> found = new ArrayList<>();
        try (PreparedStatement statement = connection.prepareStatement(months)) {
            statement.setTimestamp(1, Timestamp.from(java.time.Instant.parse("2021-06-30T12:00:00Z")));
            statement.setTimestamp(2, Timestamp.from(java.time.Instant.parse("2021-10-31T11:00:00Z")));
            ResultSet rows = statement.executeQuery();
            while (rows.next()) found.add(rows.getTimestamp(1).toInstant() + " " + rows.getString(2));
        }
        return String.join(" ", found);
    }

    static String older(Connection connection, int age) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(OLDER)) {
            statement.setInt(1, age);
            return all(statement.executeQuery());
        }
    }

    /** From its fifth use on the driver names the statement, and then asks for binary results. */
    static Object manyUses(Connection connection) throws SQLException {
        Set<Long> found = new TreeSet<>();
        try (PreparedStatement statement = connection.prepareStatement(OLDER)) {
            for (int i = 0; i < 9; i++) {
                statement.setInt(1, 65);
                ResultSet rows = statement.executeQuery();
                rows.next();
                found.add(rows.getLong(1));
            }
        }
        return found;
    }

    static Object fetchSize(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        Statement statement = connection.createStatement();
        statement.setFetchSize(2);
        return all(statement.executeQuery(STATES));
    }

    static Object transaction(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        connection.setReadOnly(true);
        connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
        String before = all(connection.createStatement().executeQuery(COUNT));
        Savepoint savepoint = connection.setSavepoint();
        try {
            connection.createStatement().executeQuery("SELECT nothing FROM people");
        } catch (SQLException expected) {
            connection.rollback(savepoint);
        }
        String after = all(connection.createStatement().executeQuery(COUNT));
        connection.commit();
        return before + " " + after;
    }

    static Object error(Connection connection) throws SQLException {
        try {
            connection.createStatement().executeQuery("SELECT count(*) FROM people WHERE nothing = 1");
            return "no error";
        } catch (org.postgresql.util.PSQLException error) {
            return error.getSQLState() + " at " + error.getServerErrorMessage().getPosition();
        }
    }

    static Object severalResults(Connection connection) throws SQLException {
        Statement statement = connection.createStatement();
        List<String> found = new ArrayList<>();
        boolean more = statement.execute("SELECT 1; " + COUNT + "; SELECT 2");
        while (more) {
            found.add(all(statement.getResultSet()));
            more = statement.getMoreResults();
        }
        return found;
    }

    static Object tables(Connection connection) throws SQLException {
        Set<String> found = new TreeSet<>();
        ResultSet rows = connection.getMetaData().getTables(null, "public", "%", new String[] {"TABLE"});
        while (rows.next()) found.add(rows.getString("TABLE_NAME"));
        return found;
    }

    static Object columns(Connection connection) throws SQLException {
        List<String> found = new ArrayList<>();
        ResultSet rows = connection.getMetaData().getColumns(null, "public", "states", "%");
        while (rows.next()) found.add(rows.getString("COLUMN_NAME") + " " + rows.getString("TYPE_NAME"));
        return found;
    }

    static Object otherMetadata(Connection connection) throws SQLException {
        DatabaseMetaData metadata = connection.getMetaData();
        all(metadata.getSchemas());
        all(metadata.getCatalogs());
        all(metadata.getTableTypes());
        all(metadata.getPrimaryKeys(null, "public", "people"));
        all(metadata.getImportedKeys(null, "public", "visits"));
        all(metadata.getIndexInfo(null, "public", "people", false, true));
        all(metadata.getTablePrivileges(null, "public", "people"));
        all(metadata.getTypeInfo());
        all(metadata.getFunctions(null, "public", "%"));
        return metadata.getDatabaseProductName() + " " + metadata.getDatabaseMajorVersion();
    }

    static Object statementMetadata(Connection connection) throws SQLException {
        PreparedStatement statement = connection.prepareStatement(OLDER);
        ResultSetMetaData columns = statement.getMetaData();
        ParameterMetaData parameters = statement.getParameterMetaData();
        return columns.getColumnName(1) + " " + columns.getColumnTypeName(1) + " " + parameters.getParameterTypeName(1);
    }

    static Object batch(Connection connection) throws SQLException {
        connection.createStatement().execute("CREATE TEMP TABLE mine (x int)");
        PreparedStatement insert = connection.prepareStatement("INSERT INTO mine VALUES (?)");
        for (int i = 0; i < 5; i++) {
            insert.setInt(1, i);
            insert.addBatch();
        }
        insert.executeBatch();
        return all(connection.createStatement().executeQuery("SELECT sum(x) FROM mine")) + " " + older(connection, 65);
    }

    static Object copy(Connection connection) throws Exception {
        CopyManager manager = connection.unwrap(PGConnection.class).getCopyAPI();
        StringWriter target = new StringWriter();
        manager.copyOut("COPY (" + STATES + ") TO STDOUT WITH (FORMAT csv)", target);
        connection.createStatement().execute("CREATE TEMP TABLE mine (x int)");
        long rows = manager.copyIn("COPY mine FROM STDIN", new StringReader("1\n2\n"));
        return target.toString().trim().replace("\n", " ") + " " + rows + " " + older(connection, 65);
    }

    static String endless() {
        StringBuilder tables = new StringBuilder("states s0");
        for (int i = 1; i < 30; i++) tables.append(" CROSS JOIN states s").append(i);
        return "SELECT (SELECT count(*) FROM people) AS n, (SELECT count(*) FROM " + tables + ") AS endless";
    }

    static Object queryTimeout(Connection connection) throws SQLException {
        Statement statement = connection.createStatement();
        statement.setQueryTimeout(1);
        try {
            statement.executeQuery(endless());
            return "no error";
        } catch (SQLException error) {
            return error.getSQLState() + " " + older(connection, 65);
        }
    }

    static Object cancel(Connection connection) throws Exception {
        Statement statement = connection.createStatement();
        boolean[] done = {false};
        Thread other = new Thread(() -> {
            while (!done[0]) {
                try {
                    Thread.sleep(300);
                    if (!done[0]) statement.cancel();
                } catch (Exception error) {
                    return;
                }
            }
        });
        other.start();
        try {
            statement.executeQuery(endless());
            return "no error";
        } catch (SQLException error) {
            done[0] = true;
            other.join();
            return error.getSQLState() + " " + older(connection, 65);
        }
    }

    static Object refusal(Connection connection) throws SQLException {
        try {
            return all(connection.createStatement().executeQuery("SELECT age FROM people"));
        } catch (org.postgresql.util.PSQLException error) {
            return error.getSQLState() + " at " + error.getServerErrorMessage().getPosition();
        }
    }
}
