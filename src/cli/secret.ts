// Reads a command's secret from an environment variable, or from the file that a variable names.

import { readFileSync } from "node:fs";
import { cleanText, sentence } from "../config/setting-text.ts";
import { CommandError, INVALID, usageError } from "./command-error.ts";

export type Env = Readonly<Record<string, string | undefined>>;

/**
 * Returns the secret, or `undefined` if it is not set. Throws a CommandError if the secret is
 * invalid or its file cannot be read.
 */
export function secretOf(env: Env, name: string): string | undefined {
  const file = env[`${name}_FILE`] ?? "";
  const original = file === "" ? (env[name] ?? "") : readSecret(file, name);
  if (original === "") return undefined;
  const { text, fault } = cleanText(original);
  if (fault === undefined) return text;
  const subject = file === "" ? `The environment variable ${name}` : `The file ${file}`;
  throw usageError(sentence(subject, fault, undefined));
}

function readSecret(file: string, name: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new CommandError(`The file ${file} in ${name}_FILE cannot be read: ${reason}.`, INVALID);
  }
}
