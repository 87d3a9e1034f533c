// What is wrong with a configuration or a command line, in sentences an operator can act on. Holds no secret values.

/** The process cannot start like this: exit code 2. Each problem is one sentence. */
export class ConfigError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join("\n"));
    this.name = "ConfigError";
    this.problems = problems;
  }
}
