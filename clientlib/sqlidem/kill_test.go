package sqlidem_test

const roleVariable = "IDEMD_TEST_SERVICE_ROLE"

func serve(string) {}
