// The error for an invalid configuration or command line. Its messages are for the operator and
// must never contain a secret.

/** Error with the problems of a configuration or a command line, one sentence for each problem. */
export class ConfigError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join("\n"));
    this.name = "ConfigError";
    this.problems = problems;
  }
}
