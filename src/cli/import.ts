// The command `jindou import`: reports what a server of another product has, and what cannot be moved
// to Jindou. It calls no node.

import { IMPORT_TOKEN_ENV } from "../config/sources.ts";
import { CommandError, FAILED, usageError } from "./command-error.ts";
import { numberOf, type Output } from "./commands.ts";
import { type Env, secretOf } from "./secret.ts";
import type { Arguments } from "./usage.ts";

const ROWS_PER_SECOND = 10_000;
const MAX_ROWS_PER_SECOND = 1_000_000;

/** Reads a server and reports what it has. Rejects with an error named SourceError. */
export type SurveySource = (options: {
  readonly url: URL;
  readonly token: string;
  readonly rowsPerSecond: number;
  note(line: string): void;
}) => Promise<{ readonly lines: readonly string[]; readonly json: object }>;

interface ImportPorts {
  readonly output: Output;
  readonly env: Env;
  readonly survey: SurveySource;
}

export async function importFrom(
  { words: [product], flags }: Arguments,
  { output, env, survey }: ImportPorts,
): Promise<void> {
  if (product !== "wukongim")
    throw usageError("Name the product of the server: jindou import wukongim.");
  if (!flags.has("dry-run"))
    throw usageError(
      "This version of Jindou imports nothing. Add --dry-run to see what the server has.",
    );
  const options = {
    url: sourceUrl(flags.get("from")),
    token: secretOf(env, IMPORT_TOKEN_ENV) ?? "",
    rowsPerSecond: numberOf(flags, "rate", { min: 1, max: MAX_ROWS_PER_SECOND }) ?? ROWS_PER_SECOND,
    note: output.note,
  };
  const report = await survey(options).catch((error: unknown) => {
    if (error instanceof Error && error.name === "SourceError")
      throw new CommandError(error.message, FAILED);
    throw error;
  });
  if (output.isJson) return output.print(JSON.stringify(report.json));
  for (const line of report.lines) output.print(line);
}

function sourceUrl(text: string | undefined): URL {
  const url = text !== undefined && URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw usageError(
      "Name the HTTP API of the server with --from, for example --from=http://127.0.0.1:5001.",
    );
  if (url.username !== "" || url.password !== "")
    throw usageError(
      `--from must not contain a user or a password, because other users of this machine can read command lines. Set ${IMPORT_TOKEN_ENV}.`,
    );
  return url;
}
