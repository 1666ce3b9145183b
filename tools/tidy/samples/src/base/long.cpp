class Long {
  int f() const;
};
int Long::f() const {  // expect: function-size
  step(1);
  step(2);
  step(3);
  step(4);
  step(5);
  step(6);
  step(7);
  step(8);
  step(9);
  step(10);
  step(11);
  step(12);
  step(13);
  step(14);
  step(15);
  step(16);
  step(17);
  step(18);
  step(19);
  step(20);
  step(21);
  step(22);
  step(23);
  step(24);
  step(25);
  step(26);
  step(27);
  step(28);
  step(29);
  step(30);
  step(31);
  step(32);
  step(33);
  step(34);
  step(35);
  step(36);
  step(37);
  step(38);
  step(39);
  step(40);
  step(41);
  step(42);
  step(43);
  step(44);
  step(45);
  step(46);
  step(47);
  step(48);
  step(49);
  step(50);
  step(51);
  step(52);
  step(53);
  step(54);
  step(55);
  step(56);
  step(57);
  step(58);
  step(59);
  step(60);
  step(61);
  step(62);
  step(63);
  step(64);
  step(65);
  step(66);
  step(67);
  step(68);
  step(69);
  step(70);
  step(71);
  step(72);
  step(73);
  step(74);
  step(75);
  step(76);
  step(77);
  step(78);
  step(79);
  step(80);
  step(81);
  step(82);
  step(83);
  step(84);
  step(85);
  step(86);
  step(87);
  step(88);
  step(89);
  step(90);
  step(91);
  step(92);
  step(93);
  step(94);
  step(95);
  step(96);
  step(97);
  step(98);
  step(99);
  step(100);
  return 0;
}
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// a line
// expect@1: file-size
