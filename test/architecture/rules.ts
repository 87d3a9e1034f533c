// The architecture rules as pure functions. Each function receives facts about files and returns
// one sentence for each violation. The caller supplies what is allowed.

import type { FileFacts, FunctionFacts, Import } from "./source-facts.ts";

/** Imports that the files of one room may have in addition to their own room. */
export interface Room {
  /** Folders (ending in `/`) or files below `src/`. */
  readonly local: readonly string[];
  readonly packages: readonly string[];
  /** Modules of Node.js. `any` allows all of them. */
  readonly node: readonly string[] | "any";
}

/** Sizes above which a file or function is reported. */
export interface Limits {
  readonly fileLines: number;
  readonly functionLines: number;
  readonly parameters: number;
  readonly localImports: number;
}

/**
 * Returns the imports that the room table does not allow. A file belongs to the room with the
 * longest matching prefix of its path below `src/`.
 */
export function roomViolations(
  files: readonly FileFacts[],
  rooms: Readonly<Record<string, Room>>,
): readonly string[] {
  return sourcesOf(files).flatMap(({ path, imports }) => {
    const pathInSrc = path.slice("src/".length);
    const name = roomOf(pathInSrc, rooms);
    const room = name === undefined ? undefined : rooms[name];
    if (name === undefined || room === undefined) return [`${path} is not in a room of the table`];
    return imports
      .filter((item) => !isAllowed(item, room, name))
      .map((item) => `${path} may not import ${item.specifier}`);
  });
}

function sourcesOf(files: readonly FileFacts[]): readonly FileFacts[] {
  return files.filter((file) => file.path.startsWith("src/"));
}

function roomOf(pathInSrc: string, rooms: Readonly<Record<string, Room>>): string | undefined {
  return Object.keys(rooms)
    .filter((name) => isUnder(pathInSrc, name))
    .sort((a, b) => b.length - a.length)[0];
}

function isUnder(pathInSrc: string, name: string): boolean {
  return name.endsWith("/") ? pathInSrc.startsWith(name) : pathInSrc === name;
}

function isAllowed(item: Import, room: Room, own: string): boolean {
  const { specifier, file } = item;
  if (file !== undefined) {
    const pathInSrc = file.startsWith("src/") ? file.slice("src/".length) : "";
    return [own, ...room.local].some((name) => isUnder(pathInSrc, name));
  }
  if (specifier.startsWith("node:")) return room.node === "any" || room.node.includes(specifier);
  return room.packages.includes(specifier);
}

/** Returns chains of imports that end where they began, including type imports. */
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
 * Returns the exports of sources that no other file of the project imports, except the exports of
 * the files in `published`.
 */
export function deadExports(
  files: readonly FileFacts[],
  published: readonly string[],
): readonly string[] {
  const importedNames = new Map<string, Set<string>>();
  for (const { imports } of files)
    for (const { file = "", names } of imports) {
      const fileNames = importedNames.get(file) ?? new Set();
      importedNames.set(file, fileNames);
      for (const name of names === "all" ? ["*"] : names) fileNames.add(name);
    }
  return sourcesOf(files)
    .filter(({ path }) => !published.includes(path))
    .flatMap(({ path, exports }) => {
      const names = importedNames.get(path);
      if (names?.has("*")) return [];
      return exports
        .filter((name) => !names?.has(name))
        .map((name) => `${path} exports ${name}, which no file imports`);
    });
}

/** Returns the files and functions that exceed a limit. */
export function sizeViolations(files: readonly FileFacts[], limits: Limits): readonly string[] {
  const tooLong = files
    .filter((file) => file.lines > limits.fileLines)
    .map((file) => ({ path: file.path, excess: `${file.lines} lines` }));
  const tooMany = sourcesOf(files)
    .map((file) => ({ path: file.path, count: localImports(file) }))
    .filter(({ count }) => count > limits.localImports)
    .map(({ path, count }) => ({ path, excess: `${count} local imports` }));
  const functions = sourcesOf(files).flatMap((file) =>
    file.functions.flatMap((item) =>
      functionExcess(item, limits).map((excess) => ({
        path: `${file.path} ${item.name}`,
        excess,
      })),
    ),
  );
  return [...tooLong, ...tooMany, ...functions].map(({ path, excess }) => `${path} has ${excess}`);
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

/**
 * Returns files with a default export, barrel files, and files that do not begin with a comment.
 */
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

/**
 * Returns the modules and globals of Node.js that the files below `folders` need, directly or
 * through imports.
 */
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
/** Name of a collection of values that does not say what they are. */
const BAG = /^#?parts$/;

/** Returns the locals, parameters and private members whose names do not say what they are. */
export function nameViolations(files: readonly FileFacts[]): readonly string[] {
  return files.flatMap(({ path, declaredNames }) =>
    declaredNames
      .filter(({ name, kind }) => VAGUE_NAME.test(name) || (BAG.test(name) && kind !== "variable"))
      .map(({ name, line, kind }) => `${path}:${line} names a ${kind} "${name}"`),
  );
}

/** Name of the product whose clients and backends are served by one room only. */
const COMPAT_NAME = /wukongim|wkproto/i;
/**
 * Rooms that may use this name: the room of that product, and the rooms that connect all rooms and
 * compose their settings.
 */
const COMPAT_ROOMS = ["src/compat/wukongim/", "src/server/", "src/config/"];

/** Returns the files and names outside `COMPAT_ROOMS` that contain the name of that product. */
export function compatViolations(files: readonly FileFacts[]): readonly string[] {
  return sourcesOf(files)
    .filter(({ path }) => !COMPAT_ROOMS.some((room) => path.startsWith(room)))
    .flatMap(({ path, exports, declaredNames, functions }) => {
      const names = [...exports, ...declaredNames, ...functions.map(({ name }) => ({ name }))].map(
        (item) => (typeof item === "string" ? item : item.name),
      );
      return [...new Set([path, ...names])]
        .filter((name) => COMPAT_NAME.test(name))
        .map((name) =>
          name === path ? `${path} has the name of another product` : `${path} declares ${name}`,
        );
    });
}

/** Beginnings of comments that have no subject and no verb. */
const FRAGMENT = /^(Of|From so|As many|As much|By what|With what|What is|What of|Unless|Whose)\b/;

/** Returns the doc comments that begin without a subject or a verb. */
export function commentViolations(files: readonly FileFacts[]): readonly string[] {
  return files.flatMap(({ path, docComments }) =>
    docComments
      .filter(({ text }) => FRAGMENT.test(text))
      .map(({ text, line }) => `${path}:${line} begins a doc comment with "${text}"`),
  );
}
