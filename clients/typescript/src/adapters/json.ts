/** Guards for values whose shape is somebody else's word only. */
import type { JsonObject, JsonValue } from '../values.js';

/** An object that is no array. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A JSON object all the way down, at most 64 levels deep. */
export function isJsonObject(value: unknown): value is JsonObject {
  return isRecord(value) && isJsonValue(value, 64);
}

function isJsonValue(value: unknown, levels: number): value is JsonValue {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return true;
  if (typeof value === 'number') return Number.isFinite(value);
  if (typeof value !== 'object' || levels === 0) return false;
  if (Array.isArray(value)) return value.every((one) => isJsonValue(one, levels - 1));
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) return false;
  return Object.values(value).every((one) => isJsonValue(one, levels - 1));
}

/** How deep objects and arrays lie in one another; a plain value is 0. */
export function depth(value: JsonValue): number {
  if (typeof value !== 'object' || value === null) return 0;
  let deepest = 0;
  for (const one of Object.values(value)) deepest = Math.max(deepest, depth(one));
  return deepest + 1;
}
