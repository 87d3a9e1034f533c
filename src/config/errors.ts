// The problems of a configuration or a command line, as sentences an operator can act on. Holds no
// secret values.

/** Ends the process with exit code 2. Each problem is one sentence. */
export class ConfigError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join("\n"));
    this.name = "ConfigError";
    this.problems = problems;
  }
}
