#!/usr/bin/env python3
"""Tests of cu2cpp.py and check_api.py."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_api
import cu2cpp


class Conversion(unittest.TestCase):
    def test_a_launch_becomes_a_macro(self):
        out, launches, _ = cu2cpp.convert('k<<<g, b>>>(x);')
        self.assertEqual((out, launches), ('EMU_LAUNCH((k), g, b)(x);', 1))

    def test_template_arguments_and_nested_parentheses_are_kept(self):
        out, _, _ = cu2cpp.convert('a::k<float, (3 > 2)><<<dim3(f(x, y), 2), 4 * B, n >> 1, s>>>(x);')
        self.assertEqual(out, 'EMU_LAUNCH((a::k<float, (3 > 2)>), dim3(f(x, y), 2), 4 * B, n >> 1, s)(x);')

    def test_lines_keep_their_numbers(self):
        text = 'k<T>\n    <<<g,\n       b>>>(x,\n  y);\nend'
        self.assertEqual(cu2cpp.convert(text)[0].count('\n'), text.count('\n'))

    def test_dynamic_shared_arrays_become_pointers(self):
        for array in ('float s[]', '__align__(16) float s[]', 'alignas(16) float s []', 'float __align__(16) s[]'):
            out, _, arrays = cu2cpp.convert(f'extern __shared__ {array};')
            self.assertEqual((out, arrays), ('float *s = (float *)emu::ctx.dynamic;', 1))
        out, _, _ = cu2cpp.convert('extern __shared__ unsigned char raw[];')
        self.assertEqual(out, 'unsigned char *raw = (unsigned char *)emu::ctx.dynamic;')

    def test_comments_and_strings_are_left_alone(self):
        text = '// k<<<1, 2>>>(x)\n/* extern __shared__ int */ "k<<<g>>>" 1\'000 \'"\''
        self.assertEqual(cu2cpp.convert(text), (text, 0, 0))

    def test_what_cannot_be_rewritten_is_an_error(self):
        for text in ('(f)<<<1, 2>>>(x);', 'k<<<1, 2;', 'k<<<1, 2>>>;', 'extern __shared__ float s[4];'):
            with self.assertRaises(cu2cpp.ConversionError, msg=text):
                cu2cpp.convert(text)


class Api(unittest.TestCase):
    def test_calls_on_the_list_pass(self):
        self.assertEqual(check_api.unknown_calls('cudaMalloc(&p, 4); ncclSend(a); // cudaFoo()', {'cudaMalloc', 'ncclSend'}), [])

    def test_a_call_that_is_not_on_the_list_is_named_with_its_line(self):
        self.assertEqual(check_api.unknown_calls('\ncublasLtFoo(x);', set()), [(2, 'cublasLtFoo')])


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], '-b'])
