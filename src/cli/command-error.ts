// The error of a failed command that calls a running node, and the exit codes of these commands.

/** Exit code if the node rejected the call or is not ready. */
export const FAILED = 1;
/** Exit code if the arguments or the settings are invalid. */
export const INVALID = 2;
/** Exit code if no node responded. */
export const NO_ANSWER = 3;

/**
 * Error of a failed command. The message consists of whole sentences for the user of the command.
 */
export class CommandError extends Error {
  override readonly name = "CommandError";
  readonly exitCode: number;

  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

export function usageError(message: string): CommandError {
  return new CommandError(message, INVALID);
}
