// Finds the source lines for positions in the bundled program, using the source map beside each
// bundled file. State: the positions that have been looked up. The maps are not kept, because they
// need a lot of memory.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { BoundedMap } from "../lib/bounded-map.ts";

const BUNDLE = new URL("..", import.meta.url);
/** Project folder. Source paths are shown relative to it. */
const PROJECT = fileURLToPath(new URL("..", BUNDLE));
const PLACE = new RegExp(
  `${BUNDLE.href.replace(/[^\w/]/g, "\\$&")}([\\w./-]+\\.js):(\\d+):(\\d+)`,
  "g",
);
const MAX_PLACES = 1000;

const places = new BoundedMap<string, string>(MAX_PLACES);

interface SourceMap {
  readonly sources: readonly string[];
  readonly mappings: string;
}

/**
 * Replaces positions in bundled files with positions in the source files, such as
 * `src/start.ts:12:5`.
 */
export function withSourceLines(stack: string): string {
  return stack.replace(PLACE, (place, name: string, line: string, column: string) => {
    const existing = places.get(place);
    if (existing !== undefined) return existing;
    const source = sourcePlace(new URL(name, BUNDLE), Number(line), Number(column)) ?? place;
    places.set(place, source);
    return source;
  });
}

/**
 * Returns the source position for a position in a bundled file, or `undefined` if it cannot be
 * determined. Lines and columns begin at 1.
 */
export function sourcePlace(file: URL, line: number, column: number): string | undefined {
  try {
    const address = new URL(`${file.href}.map`);
    const { sources, mappings } = JSON.parse(readFileSync(address, "utf8")) as SourceMap;
    const place = findPlace(mappings, line - 1, column - 1);
    const source = place && sources[place.source];
    if (place === undefined || source === undefined) return undefined;
    const path = fileURLToPath(new URL(source, address));
    const shown = path.startsWith(PROJECT) ? path.slice(PROJECT.length) : path;
    return `${shown}:${place.line + 1}:${place.column + 1}`;
  } catch {
    return undefined; // no map, or no free file descriptor
  }
}

interface MappedPlace {
  readonly source: number;
  readonly line: number;
  readonly column: number;
}

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUES = new Uint8Array(128);
for (const [value, digit] of [...DIGITS].entries()) VALUES[digit.charCodeAt(0)] = value;

const COMMA = 44;
const SEMICOLON = 59;
const CONTINUES = 32;

/**
 * Finds the last mapping at or before the column of a bundled line. Lines and columns begin at 0. A
 * mapping stores how much its bundled column, source, source line and source column differ from
 * those of the previous mapping [source map revision 3].
 */
function findPlace(mappings: string, line: number, column: number): MappedPlace | undefined {
  const numbers = [0, 0, 0, 0];
  let place: MappedPlace | undefined;
  let atLine = 0;
  let field = 0;
  let value = 0;
  let shift = 0;
  const endMapping = () => {
    const [bundledColumn = 0, source = 0, sourceLine = 0, sourceColumn = 0] = numbers;
    if (field >= numbers.length && atLine === line && bundledColumn <= column)
      place = { source, line: sourceLine, column: sourceColumn };
    field = 0;
  };
  for (let at = 0; at < mappings.length; at++) {
    const code = mappings.charCodeAt(at);
    if (code === COMMA || code === SEMICOLON) {
      endMapping();
      if (code === COMMA) continue;
      if (atLine === line) return place;
      atLine += 1;
      numbers[0] = 0;
      continue;
    }
    const digit = VALUES[code] ?? 0;
    value += (digit & (CONTINUES - 1)) << shift;
    shift += 5;
    if ((digit & CONTINUES) !== 0) continue;
    const difference = (value & 1) === 1 ? -(value >>> 1) : value >>> 1;
    if (field < numbers.length) numbers[field] = (numbers[field] ?? 0) + difference;
    field += 1;
    value = 0;
    shift = 0;
  }
  endMapping();
  return place;
}
