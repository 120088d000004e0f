// Package load shows that the daemon stays as it is under more than it can do, and for a long time: waiters by the thousand (G7), floods, days of
// entries that come and go, and hours at half load. All of it is tests and benchmarks; docs/reliability.md says how to run the long forms.
package load
