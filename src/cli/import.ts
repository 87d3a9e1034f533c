// The command `jindou import`: copies the data of another product's server into a Jindou node, or
// reports what that server has and what cannot be copied.

import { readFileSync } from "node:fs";
import { IMPORT_TOKEN_ENV, TARGET_TOKEN_ENV } from "../config/sources.ts";
import { CommandError, FAILED, INVALID, usageError } from "./command-error.ts";
import { numberOf, type Output } from "./commands.ts";
import { type Env, secretOf } from "./secret.ts";
import type { Arguments } from "./usage.ts";

const ROWS_PER_SECOND = 10_000;
const MAX_ROWS_PER_SECOND = 1_000_000;

interface SourceSettings {
  readonly url: URL;
  readonly token: string;
  readonly rowsPerSecond: number;
}

/**
 * Function that reads a server and reports what it has. Rejects with an error named SourceError if
 * a call fails.
 */
export type SurveySource = (
  options: SourceSettings & { note(line: string): void },
) => Promise<{ readonly lines: readonly string[]; readonly json: object }>;

/**
 * Function that copies a server's data to a node. Rejects with an error named SourceError if a call
 * fails.
 */
export type CopySource = (options: {
  readonly source: SourceSettings;
  readonly target: { readonly url: URL; readonly token: string };
  readonly isLast: boolean;
  readonly comparesAll: boolean;
  readonly acceptsDifferences: boolean;
  readonly userLines: readonly string[];
  readonly channelLines: readonly string[];
  note(line: string): void;
}) => Promise<{
  readonly stored: number;
  readonly unchanged: number;
  readonly refused: Readonly<
    Record<string, { readonly count: number; readonly examples: string[] }>
  >;
  readonly messages: number;
  readonly compared: number;
  readonly warnings: readonly string[];
  readonly differences: readonly string[];
  readonly isClosed: boolean;
}>;

interface ImportPorts {
  readonly output: Output;
  readonly env: Env;
  readonly survey: SurveySource;
  readonly copy: CopySource;
}

export async function importFrom(
  { words: [product], flags }: Arguments,
  { output, env, survey, copy }: ImportPorts,
): Promise<void> {
  if (product !== "wukongim")
    throw usageError("Name the product of the server: jindou import wukongim.");
  const isDryRun = flags.has("dry-run");
  if (isDryRun === flags.has("to"))
    throw usageError(
      isDryRun
        ? "--dry-run stores nothing, so it does not take --to. Omit one of them."
        : "Name the node with --to, for example --to=http://127.0.0.1:5001, or add --dry-run to see what the server has.",
    );
  const source = {
    url: addressOf(flags.get("from"), "from", IMPORT_TOKEN_ENV),
    token: secretOf(env, IMPORT_TOKEN_ENV) ?? "",
    rowsPerSecond: numberOf(flags, "rate", { min: 1, max: MAX_ROWS_PER_SECOND }) ?? ROWS_PER_SECOND,
  };
  const isLast = flags.has("close");
  const comparesAll = comparesAllOf(flags, isLast);
  const userLines = linesOf(flags, "users", ["user", "token", "system_uid"]);
  const channelLines = linesOf(flags, "channels", ["channel", "members", "list"]);
  const { note } = output;
  if (isDryRun) {
    const report = await survey({ ...source, note }).catch(rethrow);
    if (output.isJson) return output.print(JSON.stringify(report.json));
    for (const line of report.lines) output.print(line);
    return;
  }
  const report = await copy({
    source,
    target: {
      url: addressOf(flags.get("to"), "to", TARGET_TOKEN_ENV),
      token: secretOf(env, TARGET_TOKEN_ENV) ?? "",
    },
    ...{ isLast, comparesAll, acceptsDifferences: flags.has("accept-differences") },
    ...{ userLines, channelLines, note },
  }).catch(rethrow);
  const { differences, isClosed, ...counts } = report;
  if (output.isJson)
    output.print(JSON.stringify({ ...counts, differences, closed: isClosed ? 1 : 0 }));
  else for (const line of reportLines(report, comparesAll)) output.print(line);
  if (differences.length === 0 || isClosed) return;
  throw new CommandError(
    isLast
      ? "The data of the two servers differ, so the import was not closed. Repeat the command, or add --accept-differences."
      : "The data of the two servers differ. Repeat the command.",
    FAILED,
  );
}

type Report = Awaited<ReturnType<CopySource>>;

function reportLines(report: Report, comparesAll: boolean): readonly string[] {
  const { stored, unchanged, messages, compared, refused, differences, isClosed } = report;
  const refusals = Object.entries(refused).flatMap(([code, { count, examples }]) => [
    `  ${code}: ${count}`,
    ...examples.map((example) => `    ${example}`),
  ]);
  return [
    `Read ${messages} new messages. Stored ${stored} lines; ${unchanged} were already stored.`,
    ...report.warnings,
    ...(refusals.length > 0 ? ["Not stored, by error code:", ...refusals] : []),
    ...(differences.length > 0
      ? ["Differences:", ...differences.map((difference) => `  ${difference}`)]
      : [
          comparesAll
            ? `The whole history, ${compared} messages, is equal on both sides.`
            : `The ${compared} messages that were read in this run are equal on both sides.`,
        ]),
    isClosed
      ? "The import is closed. The node serves clients."
      : "The import is open. Stop the clients of the old server, then run the command again with --close.",
  ];
}

function rethrow(error: unknown): never {
  if (error instanceof Error && error.name === "SourceError")
    throw new CommandError(error.message, FAILED);
  throw error;
}

function comparesAllOf(flags: Arguments["flags"], isLast: boolean): boolean {
  const scope = flags.get("compare");
  if (scope === undefined) return isLast;
  if (scope === "all" || scope === "new") return scope === "all";
  throw usageError(
    "--compare must be all, for the whole history, or new, for the messages that this run stores.",
  );
}

/**
 * Returns the non-empty lines of the file that the flag names. Throws a CommandError if the file
 * cannot be read or a line's kind is not in `kinds`.
 */
function linesOf(
  flags: Arguments["flags"],
  flag: "users" | "channels",
  kinds: readonly string[],
): readonly string[] {
  const file = flags.get(flag);
  if (file === undefined) return [];
  let lines: readonly string[];
  try {
    lines = readFileSync(file, "utf8").split("\n");
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new CommandError(`The file ${file} in --${flag} cannot be read: ${reason}.`, INVALID);
  }
  return lines.filter((line, at) => {
    if (line.trim() === "") return false;
    if (kinds.includes(kindOf(line))) return true;
    throw new CommandError(
      `Line ${at + 1} of ${file} in --${flag} is not a JSON object whose kind field is one of ${kinds.join(", ")}.`,
      INVALID,
    );
  });
}

function kindOf(line: string): string {
  try {
    return String(Object(JSON.parse(line)).kind);
  } catch {
    return "";
  }
}

function addressOf(text: string | undefined, flag: "from" | "to", secret: string): URL {
  const url = text !== undefined && URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw usageError(
      `Name the HTTP API of the server with --${flag}, for example --${flag}=http://127.0.0.1:5001.`,
    );
  if (url.username !== "" || url.password !== "")
    throw usageError(
      `--${flag} must not contain a user or a password, because other users of this machine can read command lines. Set ${secret}.`,
    );
  return url;
}
