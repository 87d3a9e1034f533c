// A command as bytes, made in one go: ioredis would measure and copy every argument on its own, at three times the cost, for each message. The only
// other place that knows the library: it queues, times and answers the command as any of its own. Pure.

import { Command } from "ioredis";
import type { Arg } from "./script.ts";

/** A command named in lower case; it is answered with Buffers, numbers, null or arrays of these. */
export class EncodedCommand extends Command {
  readonly #bytes: Buffer;

  constructor(name: string, args: readonly Arg[]) {
    super(name, [], { replyEncoding: null });
    this.#bytes = encodeCommand(name, args);
  }

  override toWritable(): Buffer {
    return this.#bytes;
  }
}

/** An array of bulk strings, as Redis reads commands. */
export function encodeCommand(name: string, args: readonly Arg[]): Buffer {
  const parts: (string | Buffer)[] = [];
  let text = `*${args.length + 1}\r\n${bulk(name)}`;
  let size = 0;
  for (const arg of args)
    if (typeof arg === "object") {
      text += `$${arg.length}\r\n`;
      parts.push(text, arg);
      size += Buffer.byteLength(text) + arg.length;
      text = "\r\n";
    } else text += bulk(String(arg));
  const bytes = Buffer.allocUnsafe(size + Buffer.byteLength(text));
  let at = 0;
  for (const part of parts)
    if (typeof part === "string") at += bytes.write(part, at);
    else at += part.copy(bytes, at);
  bytes.write(text, at);
  return bytes;
}

function bulk(text: string): string {
  return `$${Buffer.byteLength(text)}\r\n${text}\r\n`;
}
