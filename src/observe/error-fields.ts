// Converts any error to the fields of `ErrorFields` for the log. Other properties of the error are
// never copied, because they may contain a password. For example, ioredis adds the arguments of the
// failed command, and Node.js adds the text that could not be parsed as a URL.

import { withSourceLines } from "./source-lines.ts";

interface ErrorFields {
  readonly type: string;
  /**
   * Error code from the broker, Node.js or a Redis reply. `internal` for an error without a code.
   */
  readonly code: string;
  readonly message: string;
  /**
   * Stack frames of the error and its causes, with positions in the source files and without
   * messages.
   */
  readonly stack: string;
}

const MAX_CAUSES = 5;
const CODE = /^[A-Za-z][A-Za-z0-9_]*$/;
const REPLY_CODE = /^[A-Z]{2,}\b/;
const FRAME = /^\s+at /;

export function errorFields(error: unknown): ErrorFields {
  const chain = chainOf(error);
  return {
    type: typeOf(error),
    code: codeOf(error),
    message: sentenceOf(error),
    stack: withSourceLines(chain.flatMap(framesOf).join("\n")),
  };
}

export function sentenceOf(error: unknown): string {
  const texts: string[] = [];
  for (const link of chainOf(error)) {
    const text = messageOf(link).trim().replace(/\.$/, "");
    if (text !== "" && !texts.some((earlier) => earlier.includes(text))) texts.push(text);
  }
  return texts.join(": ");
}

/** Returns the error's own message, without input that a library quotes in it. */
export function messageOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  // V8 quotes the text that it could not parse, and Redis quotes a command's arguments.
  if (error instanceof SyntaxError && /JSON/.test(text)) return "a text is not valid JSON";
  return text.replace(/,? with args beginning with:.*$/s, "");
}

function chainOf(error: unknown): readonly unknown[] {
  const chain: unknown[] = [error];
  let cause = causeOf(error);
  while (cause !== undefined && chain.length < MAX_CAUSES && !chain.includes(cause)) {
    chain.push(cause);
    cause = causeOf(cause);
  }
  return chain;
}

/** Returns the cause. In an ioredis error for a Redis Cluster, it is in `lastNodeError`. */
function causeOf(error: unknown): unknown {
  const { cause, lastNodeError } = Object(error) as {
    readonly cause?: unknown;
    readonly lastNodeError?: unknown;
  };
  return cause ?? lastNodeError;
}

function typeOf(error: unknown): string {
  if (!(error instanceof Error)) return typeof error;
  return error.name === "Error" ? error.constructor.name : error.name;
}

function codeOf(error: unknown): string {
  const { code, name } = Object(error) as { readonly code?: unknown; readonly name?: unknown };
  if (typeof code === "string" && CODE.test(code)) return code;
  const reply = name === "ReplyError" ? REPLY_CODE.exec(messageOf(error))?.[0] : undefined;
  return reply ?? "internal";
}

function framesOf(error: unknown): readonly string[] {
  const { stack } = Object(error) as { readonly stack?: unknown };
  if (typeof stack !== "string") return [];
  return stack.split("\n").filter((line) => FRAME.test(line));
}
