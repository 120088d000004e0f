package sqlstore

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// The statements of a whole batch. They are made from the texts of those of one write, with a row u of arrays where these have parameters, so that both
// always do the same. A batch names each scope once, and its writes stand in the order of their scopes.

// parameter is a parameter in the text of a statement of one write: its number and its type.
var parameter = regexp.MustCompile(`\$(\d+)::(\w+)`)

// rows are the rows u of a batch: a column p1, p2, … for each parameter of the statement of one write that is used.
type rows struct {
	numbers []int
	types   []string
}

// each is text with columns of u in place of its parameters.
func (r *rows) each(text string) string {
	return parameter.ReplaceAllStringFunc(text, func(p string) string {
		m := parameter.FindStringSubmatch(p)
		number, err := strconv.Atoi(m[1])
		if err != nil {
			panic(err)
		}
		if !slices.Contains(r.numbers, number) {
			r.numbers, r.types = append(r.numbers, number), append(r.types, m[2])
		}
		return "u.p" + m[1]
	})
}

// from is u, once all of the texts that use it have been seen.
func (r *rows) from() string {
	arrays, names := make([]string, len(r.numbers)), make([]string, len(r.numbers))
	for i, number := range r.numbers {
		arrays[i], names[i] = fmt.Sprintf("$%d::%s[]", i+1, r.types[i]), fmt.Sprintf("p%d", number)
	}
	return "unnest(" + strings.Join(arrays, ", ") + ") AS u (" + strings.Join(names, ", ") + ")"
}

// manyStatement is the statement of a batch.
type manyStatement struct {
	text string
	// numbers says which parameter of the statement of one write each of the arrays is made of.
	numbers []int
	// unlocked fails where one of the rows is locked, if there is such a statement. It goes before text, and has its first array.
	unlocked string
}

// insertFirstGrants is insertEntry for first grants: what is the same in all of them stands in the text.
//
// The clock is read before the first row, and a batch that waits for a row that another transaction has not yet committed gives all of its rows shorter
// leases for it, never longer ones. On PostgreSQL it waits lockWait for each such row at the most. On CockroachDB there is no limit for that but the
// statement's: to try the rows before, as claimUpdates does, would lock those that are there, and they are the ones that several daemons ask for at once.
func (s *statements) insertFirstGrants() manyStatement {
	const first = 4
	var u rows
	scope, shard := u.each("$1::BYTEA"), u.each("$2::INT2")
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = u.each(c.firstValue(first + i))
	}
	ctes, from := s.clockOnce()
	return manyStatement{numbers: u.numbers, text: fmt.Sprintf(`/* idemd:put-absent */ %sINSERT INTO idemd_entries (scope_id, shard, written_at, %s)
SELECT %s, %s, t.now, %s FROM %s, %s
ON CONFLICT (scope_id) DO NOTHING
RETURNING scope_id, %s`, with(ctes), names(""), scope, shard, strings.Join(values, ", "), u.from(), from, stamps(""))}
}

// firstValue is the expression for a column's value in a first grant. The least incarnation is 0 there.
func (c column) firstValue(p int) string {
	if c.first == nil {
		return c.value(p, 0)
	}
	switch {
	case c.first == isNull{}:
		return "NULL::" + c.sqlType
	case c.stamped && c.first == int64(ledger.In(0)), c.name == "incarnation":
		return "t.now"
	default:
		return fmt.Sprintf("%v::%s", c.first, c.sqlType)
	}
}

// settleEntries is settleEntry for answers that stand in the entry's own row.
func (s *statements) settleEntries() manyStatement {
	return s.claimUpdates("settle", settleSets(s.engine))
}

func (s *statements) extendEntries() manyStatement {
	return s.claimUpdates("extend", extendSets(s.engine))
}

// claimUpdates is claimUpdate for a batch. On PostgreSQL the rows are locked in the order of the batch, the clock is read once when all are, and then they
// are changed. It goes through u and looks each scope up, which is the only way to carry out LATERAL. Where the rows are changed, = ANY beside the join
// holds it to the primary key whatever it knows of the table, and, on CockroachDB, in whatever order it is told to join.
//
// CockroachDB waits for a locked row as long as the statement may last, with no limit for that before 22.1, and a subselect that does not wait is of no
// use in the statement itself: another part of it reads the row first, and waits. So the rows are tried before, in the same exchange; where that fails,
// nothing after it is carried out. Who locks a row between the two still holds the batch up until the statement's time is over.
//
// What is tried counts a column that may be NULL and that no index has: without one CockroachDB takes an index that has the scopes, too, at its end, and
// reads, and locks, the whole of it for a batch of forty.
func (s *statements) claimUpdates(name, sets string) manyStatement {
	var u rows
	scope := u.each("$1::BYTEA")
	guard, sets := u.each(claimGuard), u.each(sets)
	const one, all = "e.scope_id = ", "e.scope_id = ANY ($1::BYTEA[])"
	m := manyStatement{numbers: u.numbers}
	ctes, t := s.clockOnce()
	from := u.from() + ", " + t
	if s.engine == cockroachDB {
		m.unlocked = "/* idemd:unlocked */ SELECT count(l.report) FROM (SELECT e.report FROM idemd_entries AS e WHERE " + all + " FOR UPDATE NOWAIT) AS l"
	} else {
		lock := "SELECT u.* FROM " + u.from() + ",\nLATERAL (SELECT e.scope_id FROM idemd_entries AS e WHERE " + one + scope + " AND " + guard + " FOR UPDATE) AS e"
		ctes = []string{"l AS MATERIALIZED (" + lock + ")", "t AS MATERIALIZED (SELECT " + s.clock + " AS now FROM (SELECT count(*) FROM l) AS n)"}
		from = "l AS u, t"
	}
	m.text = "/* idemd:" + name + " */ " + with(ctes) + "UPDATE idemd_entries AS e SET " + claimSets + sets +
		"\nFROM " + from + " WHERE " + all + " AND " + one + scope + " AND " + guard + " AND " + notLapsed + "\nRETURNING e.scope_id, " + stamps("e.")
	return m
}

// isFirstGrant says whether the arguments of an insertEntry are those of a first grant.
func isFirstGrant(args []any) bool {
	const minIncarnation, first = 2, 3
	if len(args) != first+len(columns) || args[minIncarnation] != int64(0) {
		return false
	}
	for i, c := range columns {
		switch arg := args[first+i]; {
		case c.first == nil:
		case c.first == isNull{}:
			if blob, ok := arg.([]byte); !ok || blob != nil {
				return false
			}
		case arg != c.first:
			return false
		}
	}
	return true
}

// arguments are the arrays for a batch of calls of one statement.
func (m *manyStatement) arguments(calls []*call) []any {
	out := make([]any, len(m.numbers))
	for i, number := range m.numbers {
		out[i] = array(calls, number-1)
	}
	return out
}

func array(calls []*call, arg int) any {
	switch calls[0].args[arg].(type) {
	case []byte:
		return arrayOf[[]byte](calls, arg)
	case string:
		return arrayOf[string](calls, arg)
	case bool:
		return arrayOf[bool](calls, arg)
	case int16:
		return arrayOf[int16](calls, arg)
	case int32:
		return arrayOf[int32](calls, arg)
	default:
		return arrayOf[int64](calls, arg)
	}
}

func arrayOf[T any](calls []*call, arg int) []T {
	out := make([]T, len(calls))
	for i, c := range calls {
		out[i] = c.args[arg].(T)
	}
	return out
}

// readMany gives each call of a batch the stamps of its row. Whose guard did not hold has none.
func readMany(result pgx.Rows, calls []*call) error {
	defer result.Close()
	var scope []byte
	var stamps stampsRow
	targets := append([]any{&scope}, stamps.targets()...)
	for result.Next() {
		if err := result.Scan(targets...); err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(calls, scope, func(c *call, scope []byte) int { return bytes.Compare(c.scope[:], scope) })
		if !found {
			return fmt.Errorf("sqlstore: a batch returned a row that it does not name")
		}
		calls[i].written = ledger.Written{Applied: true, Stamps: stamps.stamps()}
	}
	return result.Err()
}
