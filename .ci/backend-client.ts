// Generates src/backend/operations.ts from the OpenAPI document: the types, the methods and the
// paths of the calls in the package `jindou-server`. `npm run config:docs` writes the file.

import { execFileSync } from "node:child_process";
import { JINDOU } from "../src/api/dialect.ts";
import { openApiRoute } from "../src/api/openapi.ts";
import { createRoutes, type RoutePorts } from "../src/api/routes.ts";
import { createSyncRoutes, type SyncPorts } from "../src/compat/wukongim/sync-routes.ts";

interface Schema {
  readonly $ref?: string;
  readonly type?: string;
  readonly description?: string;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly Schema[];
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: boolean | Schema;
}

interface Operation {
  readonly operationId: string;
  readonly summary: string;
  readonly parameters?: readonly {
    readonly name: string;
    readonly in: "path" | "query";
    readonly required: boolean;
    readonly description?: string;
    readonly schema: Schema;
  }[];
  readonly requestBody?: { readonly content: Content };
  readonly responses: Readonly<Record<string, { readonly content?: Content }>>;
}

type Content = Readonly<Record<string, { readonly schema?: Schema }>>;

interface OpenApi {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
}

const JSON_TYPE = "application/json";
/** Default of `api.maxSubscribersPerCall`. It affects limits in the document, but not the types. */
const MAX_SUBSCRIBERS = 10_000;
/** Calls that a backend does not need. */
const LEFT_OUT = new Set(["getIndex", "getOpenApi"]);

/** Returns the text of src/backend/operations.ts. */
export function operationsFile(): string {
  const { paths, components } = openApiDocument();
  const calls = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(([method, operation]) =>
      isJsonCall(operation) ? [{ path, method: method.toUpperCase(), operation }] : [],
    ),
  );
  const types = new Map<string, string>();
  const needed = (schema: Schema): string => typeOf(schema, (name) => addType(name));
  function addType(name: string): void {
    if (types.has(name)) return;
    types.set(name, ""); // reserves the position, and ends the recursion
    const schema = components.schemas[name] ?? {};
    types.set(name, `${doc(schema.description)}export type ${name} = ${needed(schema)};\n`);
  }
  const signatures = calls.map(
    ({ operation }) =>
      `${doc(operation.summary)}${operation.operationId}(${argumentsOf(operation, needed)}): Promise<${replyOf(operation, needed)}>;`,
  );
  const rows = calls.map(({ path, method, operation }) => {
    const body = operation.requestBody === undefined ? "" : ", hasBody: true";
    return `${operation.operationId}: { method: "${method}", path: "${path}"${body} },`;
  });
  const source = [
    "// Generated from the OpenAPI document by `npm run config:docs`. Do not edit.",
    "",
    ...types.values(),
    "/** The calls of the HTTP interface, by their operation ids. */",
    `export interface Operations {\n${signatures.join("\n")}\n}`,
    "",
    "export const OPERATIONS = {",
    ...rows,
    "} as const satisfies Record<keyof Operations, object>;",
  ].join("\n");
  return execFileSync(
    "node_modules/.bin/biome",
    ["format", "--stdin-file-path=src/backend/operations.ts"],
    { cwd: new URL("../", import.meta.url), input: source, encoding: "utf8" },
  );
}

/**
 * Returns the OpenAPI document of a node in protected mode. The routes are never called, so their
 * ports can be placeholders.
 */
function openApiDocument(): OpenApi {
  const unused: unknown = new Proxy(() => undefined, {
    get: (_target, name) => (name === Symbol.toPrimitive ? () => 0 : unused),
    apply: () => unused,
  });
  const routes = [
    ...createRoutes(unused as RoutePorts, MAX_SUBSCRIBERS),
    ...createSyncRoutes(unused as SyncPorts, false),
  ];
  const info = { version: "", requiresCredential: false };
  const { run } = openApiRoute(routes, info, JINDOU);
  const reply = run(unused as Parameters<typeof run>[0], unused as Parameters<typeof run>[1]);
  const { body } = reply as { readonly body: string | Uint8Array };
  return JSON.parse(typeof body === "string" ? body : new TextDecoder().decode(body));
}

function isJsonCall({ operationId, requestBody, responses }: Operation): boolean {
  const contents = [requestBody?.content, resultOf(responses)];
  return (
    !LEFT_OUT.has(operationId) &&
    contents.every((content) => content === undefined || JSON_TYPE in content) &&
    contents[1] !== undefined
  );
}

/** Returns the body of a successful reply, or `undefined` if it has none. */
function resultOf(responses: Operation["responses"]): Content | undefined {
  return (responses["200"] ?? responses["201"])?.content;
}

function argumentsOf(operation: Operation, typeOfSchema: (schema: Schema) => string): string {
  const { parameters = [], requestBody } = operation;
  const named: string[] = [];
  const body = requestBody?.content[JSON_TYPE]?.schema;
  if (body !== undefined) named.push(`body: ${typeOfSchema(body)}`);
  const fields = parameters.map(
    ({ name, required, description, schema }) =>
      `${doc(description)}readonly ${name}${required ? "" : "?"}: ${typeOfSchema(schema)}${required ? "" : " | undefined"};`,
  );
  const isOptional = parameters.every(({ required }) => !required);
  if (fields.length > 0) named.push(`query${isOptional ? "?" : ""}: {\n${fields.join("\n")}\n}`);
  return named.join(", ");
}

function replyOf({ responses }: Operation, typeOfSchema: (schema: Schema) => string): string {
  const type = typeOfSchema(resultOf(responses)?.[JSON_TYPE]?.schema ?? {});
  return responses["204"] === undefined ? type : `${type} | undefined`;
}

function typeOf(schema: Schema, use: (name: string) => void): string {
  const inner = (part: Schema) => typeOf(part, use);
  if (schema.$ref !== undefined) {
    const name = schema.$ref.slice(schema.$ref.lastIndexOf("/") + 1);
    use(name);
    return name;
  }
  if (schema.enum !== undefined) return union(schema.enum.map((value) => JSON.stringify(value)));
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.anyOf !== undefined) return union(schema.anyOf.map(inner));
  switch (schema.type) {
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "array":
      return `readonly (${inner(schema.items ?? {})})[]`;
    case "object":
      return objectType(schema, inner);
    default:
      return "unknown";
  }
}

function objectType(
  { properties, required = [], additionalProperties }: Schema,
  inner: (part: Schema) => string,
): string {
  if (properties === undefined) {
    const value =
      typeof additionalProperties === "object" ? inner(additionalProperties) : "unknown";
    return `Readonly<Record<string, ${value}>>`;
  }
  const fields = Object.entries(properties).map(([name, property]) => {
    const isRequired = required.includes(name);
    const key = /^\w+$/.test(name) ? name : JSON.stringify(name);
    return `${doc(property.description)}readonly ${key}${isRequired ? "" : "?"}: ${inner(property)}${isRequired ? "" : " | undefined"};`;
  });
  return `{\n${fields.join("\n")}\n}`;
}

const union = (types: readonly string[]): string => [...new Set(types)].join(" | ");

function doc(text: string | undefined): string {
  return text === undefined || text === "" ? "" : `/** ${text.replaceAll("*/", "* /")} */\n`;
}
