// Reads the facts that the architecture rules need about a source file. It uses TypeScript's own
// parser through the API `typescript/unstable/sync` of TypeScript 7. The exact compiler version is
// pinned, so the API changes only with an intended upgrade. This file does not apply rules.

import { posix } from "node:path";
import {
  isArrowFunction,
  isBindingElement,
  isCallExpression,
  isExportAssignment,
  isExportDeclaration,
  isFunctionLikeDeclaration,
  isIdentifier,
  isImportDeclaration,
  isImportTypeNode,
  isLiteralTypeNode,
  isNamedExports,
  isNamedImports,
  isParameterDeclaration,
  isPrivateIdentifier,
  isPropertyDeclaration,
  isStringLiteral,
  isVariableDeclaration,
  isVariableStatement,
  type Node,
  type SourceFile,
  SyntaxKind,
} from "typescript/unstable/ast";
import { createVirtualFileSystem } from "typescript/unstable/fs";
import { API } from "typescript/unstable/sync";

/** An import or re-export of another module. */
export interface Import {
  readonly specifier: string;
  /** Path from the root of the project. `undefined` for a package or a module of Node.js. */
  readonly file: string | undefined;
  /** Imported names, as the other module exports them. "all" if the import may use any of them. */
  readonly names: readonly string[] | "all";
}

/** The size of a function. */
export interface FunctionFacts {
  readonly name: string;
  readonly firstLine: number;
  /**
   * Number of lines. A nested function counts as one line, because it is measured separately.
   */
  readonly lines: number;
  readonly parameters: number;
}

/** A name that a file declares. */
export interface DeclaredName {
  readonly name: string;
  readonly line: number;
  readonly kind: "variable" | "parameter" | "private member";
}

/** Facts that the rules need about a file. */
export interface FileFacts {
  /** Path from the root of the project, with slashes. */
  readonly path: string;
  readonly lines: number;
  readonly opensWithComment: boolean;
  readonly hasDefaultExport: boolean;
  /** True if the file contains nothing but `export … from`. */
  readonly isBarrel: boolean;
  readonly imports: readonly Import[];
  /** Names that the file declares and exports. */
  readonly exports: readonly string[];
  readonly functions: readonly FunctionFacts[];
  /**
   * Names of locals, parameters and `#private` fields, except the parameters of closures on one
   * line.
   */
  readonly declaredNames: readonly DeclaredName[];
  /** The first line of text of each doc comment. */
  readonly docComments: readonly { readonly text: string; readonly line: number }[];
  /** Globals of Node.js that the file uses as a value and that browsers lack. */
  readonly nodeGlobals: readonly string[];
}

/** Returns the facts about every file of the project in `folder`, including those of its pages. */
export function readProject(folder: string): readonly FileFacts[] {
  const projects = ["tsconfig.json", "tsconfig.pages.json"];
  return projects.flatMap((project) => readWith(new API({ cwd: folder }), folder, project));
}

/** Returns the facts about files that exist only as text, for tests of the rules. */
export function readTexts(texts: Readonly<Record<string, string>>): readonly FileFacts[] {
  const files = { "/p/tsconfig.json": '{"include":["**/*.ts"]}' };
  const sources = Object.fromEntries(
    Object.entries(texts).map(([path, text]) => [`/p/${path}`, text]),
  );
  const fs = createVirtualFileSystem({ ...files, ...sources });
  return readWith(new API({ cwd: "/p", fs }), "/p");
}

function readWith(api: API, folder: string, project = "tsconfig.json"): readonly FileFacts[] {
  try {
    const snapshot = api.updateSnapshot({
      openProjects: [`${folder}/${project}`],
    });
    return snapshot.getProjects().flatMap(({ rootFiles, program }) =>
      rootFiles.map((file) => {
        const source = program.getSourceFile(file);
        if (source === undefined) throw new Error(`${file} was not parsed`);
        return factsOf(posix.relative(folder, file), source);
      }),
    );
  } finally {
    api.close();
  }
}

function factsOf(path: string, source: SourceFile): FileFacts {
  const nodes = [...descendants(source)];
  const { text, statements } = source;
  return {
    path,
    lines: text.replace(/\n$/, "").split("\n").length,
    opensWithComment: /^(#![^\n]*\n)?\/\//.test(text),
    hasDefaultExport: nodes.some(isDefaultExport),
    isBarrel:
      statements.length > 0 &&
      statements.every((node) => isExportDeclaration(node) && node.moduleSpecifier),
    imports: nodes.flatMap((node) => importOf(node, path)),
    exports: statements.flatMap((node) => exportedNames(node, source)),
    functions: nodes.flatMap((node) => functionOf(node, source)),
    declaredNames: nodes.flatMap((node) => declaredNameOf(node, source)),
    docComments: [...text.matchAll(/\/\*\*[\s*]*([^\n]*)/g)].map(({ 1: first = "", index }) => ({
      text: first,
      line: lineAt(source, index),
    })),
    nodeGlobals: nodes.flatMap(nodeGlobalOf),
  };
}

function* descendants(node: Node): Generator<Node> {
  for (const child of childrenOf(node)) {
    yield child;
    yield* descendants(child);
  }
}

function childrenOf(node: Node): readonly Node[] {
  const children: Node[] = [];
  // The callback returns nothing, because a returned value would stop the iteration.
  node.forEachChild((child) => {
    children.push(child);
  });
  return children;
}

function isDefaultExport(node: Node): boolean {
  if (isExportAssignment(node)) return true;
  const modifiers = "modifiers" in node ? node.modifiers : undefined;
  return (
    Array.isArray(modifiers) &&
    modifiers.some((modifier) => modifier.kind === SyntaxKind.DefaultKeyword)
  );
}

function importOf(node: Node, from: string): readonly Import[] {
  const specifier = specifierOf(node);
  if (specifier === undefined) return [];
  const isLocal = specifier.startsWith(".");
  const file = posix.join(posix.dirname(from), specifier);
  const names = importedNames(node);
  return [{ specifier, file: isLocal ? file : undefined, names }];
}

/**
 * Returns the names in `import { … } from` or `export { … } from`. Every other form of import
 * may use all names.
 */
function importedNames(node: Node): readonly string[] | "all" {
  if (isExportDeclaration(node)) return namesIn(node.exportClause);
  if (!isImportDeclaration(node)) return "all";
  return namesIn(node.importClause?.namedBindings);
}

function namesIn(clause: Node | undefined): readonly string[] | "all" {
  if (clause === undefined) return "all";
  if (!isNamedImports(clause) && !isNamedExports(clause)) return "all";
  return clause.elements.map(({ propertyName, name }) => (propertyName ?? name).text);
}

function exportedNames(node: Node, source: SourceFile): readonly string[] {
  const modifiers = "modifiers" in node ? node.modifiers : undefined;
  const isExported =
    Array.isArray(modifiers) && modifiers.some(({ kind }) => kind === SyntaxKind.ExportKeyword);
  if (!isExported) return [];
  const declared = isVariableStatement(node) ? node.declarationList.declarations : [node];
  return declared.map((declaration) => nameOf(declaration, source));
}

/**
 * Returns the module of `import … from`, `export … from` or `import("…")`, as an expression or
 * as a type.
 */
function specifierOf(node: Node): string | undefined {
  if (isImportDeclaration(node) || isExportDeclaration(node)) return literal(node.moduleSpecifier);
  if (isImportTypeNode(node))
    return isLiteralTypeNode(node.argument) ? literal(node.argument.literal) : undefined;
  const isDynamic = isCallExpression(node) && node.expression.kind === SyntaxKind.ImportKeyword;
  return isDynamic ? literal(node.arguments[0]) : undefined;
}

function literal(node: Node | undefined): string | undefined {
  return node !== undefined && isStringLiteral(node) ? node.text : undefined;
}

function functionOf(node: Node, source: SourceFile): readonly FunctionFacts[] {
  if (!isFunctionLikeDeclaration(node) || node.body === undefined) return [];
  const firstLine = lineAt(source, node.getStart(source));
  const name = nameOf(node, source);
  const parameters = node.parameters.filter(
    (parameter) => parameter.name.getText(source) !== "this",
  ).length;
  const inner = [...outermostFunctions(node.body)].map((innerFunction) =>
    lineBreaks(innerFunction, source),
  );
  const lines = lineBreaks(node, source) + 1 - inner.reduce((sum, count) => sum + count, 0);
  return [{ name, firstLine, lines, parameters }];
}

function declaredNameOf(node: Node, source: SourceFile): readonly DeclaredName[] {
  if (!isIdentifier(node) && !isPrivateIdentifier(node)) return [];
  const { parent } = node;
  if (!("name" in parent) || parent.name !== node) return [];
  const declared = (kind: DeclaredName["kind"]) => [
    { name: node.text, line: lineAt(source, node.getStart(source)), kind },
  ];
  if (isPrivateIdentifier(node))
    return isPropertyDeclaration(parent) ? declared("private member") : [];
  let declaration: Node = parent;
  while (isBindingElement(declaration)) declaration = declaration.parent.parent;
  if (isVariableDeclaration(declaration)) return declared("variable");
  if (!isParameterDeclaration(declaration)) return [];
  const { parent: owner } = declaration;
  const isShortClosure = isArrowFunction(owner) && lineBreaks(owner, source) === 0;
  return isShortClosure ? [] : declared("parameter");
}

function lineAt(source: SourceFile, position: number): number {
  return source.getLineAndCharacterOfPosition(position).line + 1;
}

function lineBreaks(node: Node, source: SourceFile): number {
  return lineAt(source, node.end) - lineAt(source, node.getStart(source));
}

function nameOf(node: Node, source: SourceFile): string {
  if (node.kind === SyntaxKind.Constructor) return "constructor";
  const named = isArrowFunction(node) ? node.parent : node;
  if (!("name" in named) || named.name === undefined) return "(anonymous)";
  return (named.name as Node).getText(source);
}

function* outermostFunctions(node: Node): Generator<Node> {
  for (const child of childrenOf(node)) {
    if (isFunctionLikeDeclaration(child)) yield child;
    else yield* outermostFunctions(child);
  }
}

const NODE_GLOBALS = new Set(["Buffer", "process", "setImmediate", "__dirname"]);

/**
 * Returns the name if the node uses a global of Node.js. A property such as `x.process` and a
 * declaration of the name do not count.
 */
function nodeGlobalOf(node: Node): readonly string[] {
  if (!isIdentifier(node) || !NODE_GLOBALS.has(node.text)) return [];
  const { parent } = node;
  const isName = "name" in parent && parent.name === node;
  return isName ? [] : [node.text];
}
