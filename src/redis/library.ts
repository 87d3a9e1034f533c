// A library is Lua code from several files. Redis compiles it once and keeps its functions, which
// nodes call by name. The names of the library and of its functions contain a hash of the code, so
// that nodes of different versions can share one Redis, each with its own library.

import { createHash } from "node:crypto";
import { placeIn, type ServerCode, sectionOf } from "./script.ts";

/**
 * A function of a library. Redis passes the keys and the arguments of a call to the function in two
 * tables.
 */
export interface LibraryFunction extends ServerCode {
  readonly name: string;
}

export interface Library {
  /** Name in Redis: `jindou_` and 8 hexadecimal digits of a hash of the code. */
  readonly name: string;
  readonly text: string;
  /** Returns the function that the text registers as `@LIBRARY_<suffix>`. */
  function(suffix: string, options: { readonly isWriting: boolean }): LibraryFunction;
}

const NAME = /@LIBRARY/g;
const HASH_DIGITS = 8;
/** Matches a library's line number in a Redis error message. */
const LINE = /@?\buser_function:(\d+)/g;

/** Builds a library from files and generated code, which share their local variables. */
export function loadLibrary(...sources: readonly (URL | string)[]): Library {
  const sections = sources.map(sectionOf);
  const template = sections.map(({ text }) => text).join("\n");
  const hash = createHash("sha1").update(template).digest("hex").slice(0, HASH_DIGITS);
  const name = `jindou_${hash}`;
  const text = `#!lua name=${name}\n${template.replace(NAME, name)}`;
  const loading = ["function", "LOAD", text] as const;
  // The first line of the library does not come from a file.
  const withFileLines = (message: string) =>
    message.replaceAll(LINE, (shown, line) => placeIn(sections, Number(line) - 1) ?? shown);
  return {
    name,
    text,
    function: (suffix, { isWriting }) => ({
      ...{ name: `${name}_${suffix}`, loading, isWriting, withFileLines },
    }),
  };
}
