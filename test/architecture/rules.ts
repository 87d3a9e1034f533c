// The architecture rules as pure functions: facts of files in, sentences about violations out. What
// is allowed comes from the caller.

import type { FileFacts, FunctionFacts, Import } from "./source-facts.ts";

/** What the files of one room may import beside their own room. */
export interface Room {
  /** Folders (ending in `/`) or files below `src/`. */
  readonly local: readonly string[];
  readonly packages: readonly string[];
  /** Modules of Node.js; `any`: all of them. */
  readonly node: readonly string[] | "any";
}

export interface Limits {
  readonly fileLines: number;
  readonly functionLines: number;
  readonly parameters: number;
  readonly localImports: number;
}

/**
 * Imports that the room table does not allow. The longest matching prefix of a path below `src/`
 * names its room.
 */
export function roomViolations(
  files: readonly FileFacts[],
  rooms: Readonly<Record<string, Room>>,
): readonly string[] {
  return sourcesOf(files).flatMap(({ path, imports }) => {
    const place = path.slice("src/".length);
    const name = roomOf(place, rooms);
    const room = name === undefined ? undefined : rooms[name];
    if (name === undefined || room === undefined) return [`${path} is in no room of the table`];
    return imports
      .filter((item) => !isAllowed(item, room, name))
      .map((item) => `${path} may not import ${item.specifier}`);
  });
}

function sourcesOf(files: readonly FileFacts[]): readonly FileFacts[] {
  return files.filter((file) => file.path.startsWith("src/"));
}

function roomOf(place: string, rooms: Readonly<Record<string, Room>>): string | undefined {
  return Object.keys(rooms)
    .filter((name) => isUnder(place, name))
    .sort((a, b) => b.length - a.length)[0];
}

function isUnder(place: string, name: string): boolean {
  return name.endsWith("/") ? place.startsWith(name) : place === name;
}

function isAllowed(item: Import, room: Room, own: string): boolean {
  const { specifier, file } = item;
  if (file !== undefined) {
    const place = file.startsWith("src/") ? file.slice("src/".length) : "";
    return [own, ...room.local].some((name) => isUnder(place, name));
  }
  if (specifier.startsWith("node:")) return room.node === "any" || room.node.includes(specifier);
  return room.packages.includes(specifier);
}

/** Chains of imports that come back to where they began, types included. */
export function importCycles(files: readonly FileFacts[]): readonly string[] {
  const imports = new Map(files.map((file) => [file.path, file.imports.flatMap(localFile)]));
  const done = new Set<string>();
  const cycles: string[] = [];
  const visit = (path: string, trail: readonly string[]): void => {
    const start = trail.indexOf(path);
    if (start >= 0) cycles.push([...trail.slice(start), path].join(" → "));
    if (start >= 0 || done.has(path)) return;
    for (const next of imports.get(path) ?? []) visit(next, [...trail, path]);
    done.add(path);
  };
  for (const path of imports.keys()) visit(path, []);
  return cycles;
}

function localFile({ file }: Import): readonly string[] {
  return file === undefined ? [] : [file];
}

/**
 * What a source exports and no other file of the project takes. `outside`: files whose exports are
 * for others.
 */
export function deadExports(
  files: readonly FileFacts[],
  outside: readonly string[],
): readonly string[] {
  const taken = new Map<string, Set<string>>();
  for (const { imports } of files)
    for (const { file = "", names } of imports) {
      const known = taken.get(file) ?? new Set();
      taken.set(file, known);
      for (const name of names === "all" ? ["*"] : names) known.add(name);
    }
  return sourcesOf(files)
    .filter(({ path }) => !outside.includes(path))
    .flatMap(({ path, exports }) => {
      const names = taken.get(path);
      if (names?.has("*")) return [];
      return exports
        .filter((name) => !names?.has(name))
        .map((name) => `${path} exports ${name}, which no file imports`);
    });
}

/** Files and functions over a limit. */
export function sizeViolations(files: readonly FileFacts[], limits: Limits): readonly string[] {
  const tooLong = files
    .filter((file) => file.lines > limits.fileLines)
    .map((file) => ({ at: file.path, what: `${file.lines} lines` }));
  const tooMany = sourcesOf(files)
    .map((file) => ({ at: file.path, count: localImports(file) }))
    .filter(({ count }) => count > limits.localImports)
    .map(({ at, count }) => ({ at, what: `${count} local imports` }));
  const functions = sourcesOf(files).flatMap((file) =>
    file.functions.flatMap((item) =>
      functionExcess(item, limits).map((what) => ({
        at: `${file.path} ${item.name}`,
        what,
      })),
    ),
  );
  return [...tooLong, ...tooMany, ...functions].map(({ at, what }) => `${at} has ${what}`);
}

function localImports(file: FileFacts): number {
  return new Set(file.imports.flatMap(localFile)).size;
}

function functionExcess(item: FunctionFacts, limits: Limits): string[] {
  const excess: string[] = [];
  if (item.lines > limits.functionLines) excess.push(`${item.lines} lines`);
  if (item.parameters > limits.parameters) excess.push(`${item.parameters} parameters`);
  return excess;
}

/** Default exports, barrels and files that do not say what they are. */
export function formViolations(files: readonly FileFacts[]): readonly string[] {
  return files.flatMap((file) => {
    const problems: string[] = [];
    if (!file.opensWithComment) problems.push("does not open with a comment");
    if (file.hasDefaultExport) problems.push("has a default export");
    const isIndex = /(^|\/)index\.ts$/.test(file.path);
    const isClient = file.path.startsWith("src/client/");
    if ((file.isBarrel || isIndex) && !isClient) problems.push("is a barrel");
    return problems.map((problem) => `${file.path} ${problem}`);
  });
}

/** Files below `folder` that need Node.js: the SDK takes them into browsers. */
export function browserViolations(
  files: readonly FileFacts[],
  folders: readonly string[],
): readonly string[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  const reached = new Set<string>();
  const follow = (path: string): void => {
    const file = byPath.get(path);
    if (file === undefined || reached.has(path)) return;
    reached.add(path);
    for (const next of file.imports.flatMap(localFile)) follow(next);
  };
  for (const { path } of files) if (folders.some((folder) => path.startsWith(folder))) follow(path);
  return [...reached].flatMap((path) => needsOf(path, byPath.get(path)));
}

function needsOf(path: string, file: FileFacts | undefined): string[] {
  const modules = file?.imports.filter(({ specifier }) => specifier.startsWith("node:"));
  const needs = [
    ...(modules ?? []).map((item) => item.specifier),
    ...new Set(file?.nodeGlobals ?? []),
  ];
  return needs.map((need) => `${path} needs ${need}`);
}

/** Participles and pronouns, which do not say what a value is. */
const VAGUE_NAME = /^#?(one|found|given|taken|known|asked|said|wanted|those|mine)$/;
/** A bag whose name does not say what is in it. */
const BAG = /^#?parts$/;

/** Locals, parameters and private members that are not named by a noun of the domain. */
export function nameViolations(files: readonly FileFacts[]): readonly string[] {
  return files.flatMap(({ path, declaredNames }) =>
    declaredNames
      .filter(({ name, kind }) => VAGUE_NAME.test(name) || (BAG.test(name) && kind !== "variable"))
      .map(({ name, line, kind }) => `${path}:${line} names a ${kind} "${name}"`),
  );
}

const FRAGMENT = /^(Of|From so|As many|As much|By what|With what|What is|What of|Unless|Whose)\b/;

/** Doc comments that begin without a subject or a verb. */
export function commentViolations(files: readonly FileFacts[]): readonly string[] {
  return files.flatMap(({ path, docComments }) =>
    docComments
      .filter(({ text }) => FRAGMENT.test(text))
      .map(({ text, line }) => `${path}:${line} begins a doc comment with "${text}"`),
  );
}
